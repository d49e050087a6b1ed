"""What a store of conversations promises, one module per kind of promise; see contract.py."""
