"""stub"""


def work() -> None: ...
