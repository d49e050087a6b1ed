"""The queue in a SQLite file."""
