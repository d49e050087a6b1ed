"""`python -m bench`: measure Holdfast, its peers and the bare system calls in one run."""
