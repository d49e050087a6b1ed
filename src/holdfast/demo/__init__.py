"""`holdfast demo`: run the main scenarios, kill processes, and compare the totals."""
