"""The Lambda functions of conversations."""
