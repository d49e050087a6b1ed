"""Optional subscribers of events: log lines and Prometheus metrics."""
