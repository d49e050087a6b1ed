"""What a job store promises, one module per kind of promise; see job_repository_contract.py."""
