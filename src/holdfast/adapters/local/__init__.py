"""Adapters that need nothing but a disk."""
