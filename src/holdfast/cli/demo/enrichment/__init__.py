"""The first act: a queue of tasks, a worker that is killed and a handler that hangs."""
