"""Exports: jobs that download many files, count each once, and report to Step Functions."""
