"""Settings of queues, exports, heartbeats and conversations, read from the environment."""
