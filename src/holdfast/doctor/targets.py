"""What `holdfast doctor` can be given: queues, stores, products, and a worker's port.

The health check of a container runs it every minute beside the worker, so what a target needs
is imported only for that target.
"""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.doctor.checks import CheckFailed, CheckResult, ok, run_checks
from holdfast.errors import ConfigError, HoldfastError
from holdfast.products import find_products, load_part
from holdfast.urls import QUEUES, parse_url, split_database_path
from holdfast.variables import QUEUE_VARIABLE, list_variables

if TYPE_CHECKING:
    from holdfast.doctor.stores import StoreKind

_RESPONSE_SECONDS = 5.0


def find_targets(env: Mapping[str, str]) -> list[str]:
    """Return what the environment configures: the queue, and each product with a setting."""
    general = list_variables()
    products = {each.group: list_variables(each.settings) - general for each in find_products()}
    configured = [group for group, names in products.items() if any(map(env.get, names))]
    return [queue, *configured] if (queue := env.get(QUEUE_VARIABLE)) else configured


def examine_target(target: str, env: Mapping[str, str]) -> Iterator[CheckResult]:
    """Check anything that doctor knows, and return the results one by one.

    Raises ConfigError if it cannot be checked.
    """
    for product in find_products():
        for pattern, place in product.checks.items():
            if re.fullmatch(pattern, target):
                results: Iterator[CheckResult] = load_part(place)(target, env)
                return results
    if target.startswith("dynamodb:"):
        return run_checks(target, ("store", partial(_examine_tables, env=env)))
    if kind := _find_store_kind(target):
        from holdfast.doctor.stores import check_store

        return run_checks(target, ("store", partial(check_store, kind, env=env)))
    if ":" not in target and os.path.isfile(target):
        target = f"sqlite:{target}"
    try:
        parse_url(target, QUEUES)
    except ConfigError as error:
        products = " and ".join(product.group for product in find_products())
        text = f"{error}; doctor also checks stores (FILE.db, dynamodb:PREFIX), {products}"
        raise ConfigError(text) from None
    return examine_queue(target, env)


# -- queues


def examine_queue(url: str, env: Mapping[str, str]) -> Iterator[CheckResult]:
    """Check a queue, which need not exist yet. Raises ConfigError if it cannot be checked."""
    from holdfast.queues.opening import find_queue_path
    from holdfast.queues.settings import QueueSettings, SqsSettings
    from holdfast.settings import read_settings

    parsed = parse_url(url, QUEUES)
    match parsed.scheme:
        case "memory":
            raise ConfigError(
                "doctor can check folders, SQLite files and SQS queues, but not memory: URLs"
            )
        case "sqs":
            from holdfast.doctor.sqs_queue import examine_sqs_queue

            settings = read_settings(SqsSettings, env, parsed.options)
            return examine_sqs_queue(parsed.path, settings)
        case "sqlite":
            from holdfast.doctor.sqlite_file import examine_sqlite_queue

            read_settings(QueueSettings, env, parsed.options)
            return examine_sqlite_queue(*split_database_path(parsed.path))
    from holdfast.doctor.file_queue import examine_file_queue
    from holdfast.doctor.filesystem import FileQueue

    folder = find_queue_path(url, env)
    assert folder is not None  # because it is a queue on files
    return examine_file_queue(FileQueue(folder))


# -- stores


def _list_store_kinds() -> "list[StoreKind]":
    return [load_part(product.store_kind) for product in find_products()]


def _find_store_kind(target: str) -> "StoreKind | None":
    """Return the kind of store in a SQLite file, or None for a queue and for anything else."""
    path = Path(target.removeprefix("sqlite:"))
    if not os.path.isfile(path):  # False, too, if this user cannot enter its folder
        return None
    from holdfast.store.sqlite.read_only import open_read_only

    with suppress(HoldfastError), open_read_only(path, "store") as database:
        [[version]] = database.connection.execute("PRAGMA user_version")
        [[application_id]] = database.connection.execute("PRAGMA application_id")
        for kind in _list_store_kinds() if version else ():
            if kind.schema.application_id == application_id:
                return kind
    return None


def _examine_tables(url: str, env: Mapping[str, str]) -> Iterator[CheckResult]:
    """Check the tables with a prefix of each product that has some, or of all if none has."""
    from holdfast.aws.clients import make_retrying_client
    from holdfast.doctor.stores import check_store, has_tables

    client = make_retrying_client("dynamodb")
    kinds = _list_store_kinds()
    used = [kind for kind in kinds if has_tables(kind, url, client)]
    return run_checks(
        url, *(("store", partial(check_store, k, env=env)) for k in used or kinds)
    )


# -- workers


def examine_worker(port: int) -> Iterator[CheckResult]:
    """Check that the process answers that serves its metrics at this port of the loopback.

    Nothing else is asked, so an outage of a queue or a store does not make a worker unhealthy.
    """
    return run_checks(port, ("worker", _check_metrics))


def _check_metrics(port: int) -> Iterator[CheckResult]:
    connection = HTTPConnection("127.0.0.1", port, timeout=_RESPONSE_SECONDS)
    try:
        connection.request("GET", "/metrics")
        status = connection.getresponse().status
    except (OSError, HTTPException) as error:
        raise CheckFailed(
            f"no process answers at 127.0.0.1:{port}: {error}",
            f"start one with --metrics-port={port}, or restart the one that hangs",
        ) from error
    finally:
        connection.close()
    if status != 200:
        raise CheckFailed(
            f"what answers at 127.0.0.1:{port} has no metrics: HTTP {status}",
            "name the port that the worker has as its --metrics-port",
        )
    yield ok(f"the process that serves its metrics at port {port} answers")
