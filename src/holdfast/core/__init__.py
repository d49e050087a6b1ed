"""The lease engine: leases and their keeper, the queue contract, and the worker.

It depends on the standard library and pydantic only.
"""
