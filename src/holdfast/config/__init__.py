"""Settings of queues, exports, heartbeats and conversations, read from the environment.

`queue`, `export`, `heartbeat` and `chat` hold one kind of settings each. A setting that is
wrong is reported with every other problem before anything starts.
"""
