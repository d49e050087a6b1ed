"""Vendors' own log lines that would tell what ours keep back."""

import logging


def silence_vendor_logs(*names: str) -> None:
    """Let only warnings of these loggers through, unless somebody set a level for them on
    purpose.

    Otherwise an application that logs everything, as many a Lambda does, would have
    numbers, bodies and keys in its log: the vendors' clients write down their calls.
    """
    for name in names:
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.WARNING)
