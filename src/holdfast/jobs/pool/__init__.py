"""The worker pool: isolated processes that do tasks, watched and replaced."""
