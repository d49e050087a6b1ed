"""What a queue promises, one module per kind of promise; see contract.py."""
