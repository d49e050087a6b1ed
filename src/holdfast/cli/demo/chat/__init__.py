"""The chat scenario: quick messages, one reply, and a worker killed before it is sent."""
