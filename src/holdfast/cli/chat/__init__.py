"""`holdfast chat`: answer customers' messages in batches, once each."""
