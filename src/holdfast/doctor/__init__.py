"""The checks of `holdfast doctor`.

Each module has the checks of one subject (a file queue, an SQS queue, a store): small functions
from a subject to results, and their order. `targets` finds the checks of what doctor is given,
and `checks` runs them.
"""
