"""Calls, responses and clients that compare the clients of Amazon's services."""
