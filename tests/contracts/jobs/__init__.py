"""The contract suite of job stores, one module per kind of promise. See contract.py."""
