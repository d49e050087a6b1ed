"""The checks of `holdfast chat doctor`."""
