"""The export scenario: a pool worker and then the whole service are killed."""
