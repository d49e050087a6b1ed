"""The queue contract: messages, their states, and what every queue guarantees."""
