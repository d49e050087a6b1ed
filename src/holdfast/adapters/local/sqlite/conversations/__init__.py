"""The store of conversations on SQLite."""
