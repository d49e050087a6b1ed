"""Where the founding documents look for `SQSHeartbeat`. It lives with its adapter."""
