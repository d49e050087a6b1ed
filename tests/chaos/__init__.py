"""Tests with many processes and real signals, whose totals must match afterwards."""
