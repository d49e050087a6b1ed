"""The queue scenario: tasks, a worker that is killed, and a handler that hangs."""
