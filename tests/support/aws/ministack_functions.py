"""Functions in ministack, run by Lambda's own Python runtime."""

import io
import sys
import time
import zipfile
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from support.ministack_server import Ministack


def create_function(
    stack: "Ministack", name: str, handler: str, env: dict[str, str], source: str = ""
) -> None:
    """Create a function with this environment. `source` is its module `function`."""
    package = io.BytesIO()
    with zipfile.ZipFile(package, "w") as archive:
        python = f'#!/bin/sh\nexec "{sys.executable}" -m awslambdaric "$_HANDLER"\n'
        archive.writestr("bootstrap", python)
        archive.writestr("function.py", source)
    stack.client("lambda").create_function(
        FunctionName=name,
        Runtime="provided.al2023",  # so that awslambdaric runs it, as on AWS
        Handler=handler,
        Role="arn:aws:iam::000000000000:role/test",
        Code={"ZipFile": package.getvalue()},
        Timeout=60,
        Environment={"Variables": env},
    )


def map_event_source(stack: "Ministack", name: str, arn: str) -> None:
    """Let Lambda call the function with batches of the queue."""
    stack.client("lambda").create_event_source_mapping(
        EventSourceArn=arn,
        FunctionName=name,
        BatchSize=10,
        FunctionResponseTypes=["ReportBatchItemFailures"],
    )


def eventually(holds: Callable[[], Any], seconds: float = 90) -> None:
    """Wait until the condition holds."""
    give_up_at = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < give_up_at, "it did not come to pass"
        time.sleep(0.05)
