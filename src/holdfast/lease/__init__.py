"""The lease: the right to one piece of work until a deadline, and the keeper that renews it."""
