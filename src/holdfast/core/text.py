"""Texts for people that several layers write."""


def format_count(count: int, singular: str, plural: str = "") -> str:
    """Return a count with its noun, such as "1 message" or "2,000 messages"."""
    return f"{count:,} {singular if count == 1 else plural or f'{singular}s'}"
