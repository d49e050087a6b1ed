"""`holdfast export`: download many files, check them, and put them where they belong."""
