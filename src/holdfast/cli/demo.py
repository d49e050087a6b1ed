"""stub"""


def demo() -> None: ...
