"""Being here puts this folder on the import path: tests share `fs` and `models`."""
