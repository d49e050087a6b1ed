"""The providers of replies and secrets, each imported only when it is used."""

import logging


def silence_vendor_logs(*names: str) -> None:
    """Set these loggers to the level WARNING, unless the application set a level for them.

    Otherwise an application that logs everything, as many Lambda functions do, would have
    numbers, bodies and keys in its log, because the vendors' clients log their calls.
    """
    for name in names:
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.WARNING)
