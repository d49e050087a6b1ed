"""The second act: an export, a pool worker and then the whole service killed on the way."""
