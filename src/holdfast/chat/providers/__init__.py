"""Writers and senders of replies, and the sources of their secrets."""
