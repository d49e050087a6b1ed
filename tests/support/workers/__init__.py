"""Shared by the worker's tests: handlers that children can import, and helpers."""
