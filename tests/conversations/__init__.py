"""Conversations in a world of our own: seeded, single-threaded in effect, fast."""
