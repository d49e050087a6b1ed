"""The import path that the requirements document for `SQSHeartbeat`. Its code is an adapter."""
