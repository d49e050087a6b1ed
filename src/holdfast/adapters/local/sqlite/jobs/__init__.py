"""The job store on SQLite."""
