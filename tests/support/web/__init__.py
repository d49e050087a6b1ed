"""Serve a console and look at it with a real browser."""
