"""`holdfast chat`: answer customers' messages in batches, each batch once."""
