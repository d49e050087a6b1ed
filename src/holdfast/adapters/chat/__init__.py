"""Who writes replies, who sends them, and where their secrets come from."""
