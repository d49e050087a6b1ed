"""Compare a deployed stack with what the code needs: `make check-stack STACK=name`.

`examine` has the order of the checks. `functions`, `services`, `machines` and `queues` read one
kind of resource and check it; `roles` compares roles with the list in `permissions`. Every call
reads, and none changes anything.
"""
