"""Conversations answered by processes that die or freeze between any two calls of a port."""
