"""`python -m bench`: Holdfast beside its peers and the bare system calls, in one run."""
