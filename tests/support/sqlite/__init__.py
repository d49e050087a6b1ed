"""Roles of processes that share a SQLite store."""
