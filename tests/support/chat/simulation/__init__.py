"""A simulation of conversations: seeded, one thread at a time, fast."""
