"""Conversations: many messages in, one reply out, exactly once."""
