"""The scale study: the whole deployment under load for a week of virtual time."""
