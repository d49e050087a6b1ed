"""A SQLite file: its connections, its one writer, and its rows."""
