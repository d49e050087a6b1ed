"""Where the messages of `holdfast push` come from."""
