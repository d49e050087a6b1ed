"""The pages of jobs in the web console."""
