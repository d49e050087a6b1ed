"""Heartbeats to Step Functions for every job that makes progress."""
