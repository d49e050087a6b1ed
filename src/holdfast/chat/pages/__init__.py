"""The pages of conversations in the web console."""
