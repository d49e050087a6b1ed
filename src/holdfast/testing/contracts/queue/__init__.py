"""The promises of a queue, with one module per kind of promise; see contract.py."""
