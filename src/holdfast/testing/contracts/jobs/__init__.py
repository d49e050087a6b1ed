"""What a job store promises, one module per kind of promise; see contract.py."""
