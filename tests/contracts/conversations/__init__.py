"""The contract of conversation stores, with one module per kind of promise; see contract.py."""
