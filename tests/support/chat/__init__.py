"""Conversations in memory, in a simulation, and in processes that are killed."""
