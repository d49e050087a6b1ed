"""The conversation store on SQLite."""
