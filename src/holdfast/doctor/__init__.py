"""The checks of `holdfast doctor`.

Each module has the checks of one subject (a file queue, an SQS queue, tables, a state
machine and so on): small functions from a subject to results, and a table that gives them
their names and their order. `runner` runs such a table.
"""
