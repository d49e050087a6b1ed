"""Protocols small enough to look at every schedule."""
