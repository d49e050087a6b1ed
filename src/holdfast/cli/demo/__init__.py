"""`holdfast demo`: the main jobs with somebody killed on the way, and their books."""
