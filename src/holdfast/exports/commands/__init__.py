"""`holdfast export`: download many files, check them, and store them at a target."""
