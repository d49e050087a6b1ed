"""The checks of `holdfast export doctor`."""
