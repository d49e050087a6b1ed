"""What the worker's tests share: handlers that children can import, and a kit."""
