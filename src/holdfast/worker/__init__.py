"""The worker: fetch messages, run the handler, settle the outcome."""
