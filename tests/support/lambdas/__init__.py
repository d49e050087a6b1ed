"""The environment in which Lambda functions are tested."""
