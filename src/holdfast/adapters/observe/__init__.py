"""Subscribers of events: log lines and metrics. Each is optional."""
