"""The worker pool: isolated processes that do tasks, supervised and replaced."""
