"""Make the clients under test as Holdfast itself makes them, of boto3's kind and of its own."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from holdfast.adapters.aws import clients
from holdfast.adapters.aws.json_client.client import JsonClient
from support.http_server import LoopbackServer

KINDS = ("boto3", "lean")


class ClientMaker:
    """Makes clients of one kind that call a server, unless a call names another address."""

    def __init__(self, kind: str, server: LoopbackServer) -> None:
        self.kind = kind
        self.server = server
        self._made: list[Any] = []

    def make_fail_fast(
        self, service: str = "sqs", *, url: str = "", seconds: float = 2.0
    ) -> Any:
        """Make a client that tries once; its timeout is an eighth of `seconds`."""
        with self._choose_kind():
            return self._keep(
                clients.make_fail_fast_client(
                    service, seconds, endpoint_url=url or self.server.url("")
                )
            )

    def make_retrying(self, service: str = "sqs", *, url: str = "") -> Any:
        """Make a client that tries again."""
        with self._choose_kind():
            return self._keep(
                clients.make_retrying_client(service, endpoint_url=url or self.server.url(""))
            )

    def close(self) -> None:
        """Close the clients."""
        for client in self._made:
            client.close()

    @contextmanager
    def _choose_kind(self) -> Iterator[None]:
        os.environ[clients.CLIENT_VARIABLE] = "boto3" if self.kind == "boto3" else "auto"
        try:
            yield
        finally:
            del os.environ[clients.CLIENT_VARIABLE]

    def _keep(self, client: Any) -> Any:
        assert isinstance(client, JsonClient) == (self.kind == "lean")
        self._made.append(client)
        return client
