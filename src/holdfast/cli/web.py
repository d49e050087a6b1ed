"""`holdfast web`: serve the console, to this machine only unless a token protects it."""

import os
import socket
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from holdfast.cli.arguments import PORT, Queues, resolve_queue
from holdfast.cli.console import UsageError, info
from holdfast.errors import ConfigError
from holdfast.urls import QUEUES, STORES, parse_url
from holdfast.variables import QUEUE_VARIABLE
from holdfast.version import format_install_command

if TYPE_CHECKING:
    from starlette.applications import Starlette

_LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True)
class WebOptions:
    """Where the console listens, and what its pages may do."""

    jobs: Annotated[
        str | None,
        "STORE",
        "Show the jobs of this store: a file, dynamodb:PREFIX, or a folder that "
        "`holdfast export run` filled.",
    ] = None
    chat: Annotated[
        str | None,
        "STORE",
        "Show the conversations of this store: a file or dynamodb:PREFIX. Other settings are "
        "those of HOLDFAST_CHAT_….",
    ] = None
    host: Annotated[str, "The address to listen on."] = "127.0.0.1"
    port: Annotated[int, PORT, "The port; 0 for any that is free."] = 8765
    allow_actions: Annotated[bool, "Allow to redrive, drop and decide."] = False
    no_bodies: Annotated[
        bool, "Never show the body of a message, or a customer's number and texts."
    ] = False
    token_file: Annotated[
        Path | None,
        "FILE",
        "A file that holds a secret, which browsers must send. Also HOLDFAST_WEB_TOKEN.",
    ] = None
    hostname: Annotated[
        list[str] | None,
        "NAME",
        "A name under which browsers reach the console, if not the address that it listens "
        "on. Can be repeated.",
    ] = None

    def make_app(self, queues: list[str]) -> "Starlette":
        """Return the console. Raises ConfigError, and UsageError without a needed token."""
        try:
            import holdfast.web.server  # noqa: F401  # before the address is printed: it is slow
            from holdfast.web import web_app
        except ImportError as error:
            raise ConfigError(
                f"the web console needs {error.name}: {format_install_command('web')}"
            ) from None
        names = [*(self.hostname or ()), self._format_host()]
        token = self._read_token()
        if token is None and any(name.strip("[]") not in _LOOPBACK for name in names):
            raise UsageError(
                f"other machines could open the console at {', '.join(names)}: add "
                "--token-file FILE, or leave out --host and --hostname"
            )
        return web_app(
            queues,
            jobs=self.jobs,
            chat=self.chat,
            allow_actions=self.allow_actions,
            show_bodies=not self.no_bodies,
            token=token,
            hosts=names,
        )

    def _read_token(self) -> str | None:
        if self.token_file is None:
            return os.environ.get("HOLDFAST_WEB_TOKEN")
        try:
            if self.token_file.stat().st_mode & (stat.S_IROTH | stat.S_IWOTH):
                name = str(self.token_file)
                info(f"warning: other users can read or change {name!r}: run chmod 600 on it")
            return self.token_file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"cannot read {str(self.token_file)!r}: {error}") from None

    def _format_host(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host

    def listen(self) -> socket.socket:
        """Return a socket that listens. Raises UsageError if the address is in use."""
        try:
            family = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)[0][0]
            return socket.create_server((self.host, self.port), family=family, backlog=128)
        except OSError as error:
            raise UsageError(
                f"cannot listen on {self._format_host()}:{self.port}: "
                f"{error.strerror or error}; choose another --port"
            ) from None

    def format_url(self, listener: socket.socket) -> str:
        """Return the address that a browser opens."""
        return f"http://{self._format_host()}:{listener.getsockname()[1]}/"


def web(queues: Queues = None, *, options: WebOptions) -> None:
    """Show queues, jobs and conversations in a browser."""
    urls = queues or []
    # A store can be shown without a queue.
    if not urls and (os.environ.get(QUEUE_VARIABLE) or not (options.jobs or options.chat)):
        urls = [resolve_queue()]
    for url in urls:
        parse_url(url, QUEUES)  # a mistyped URL is reported now and not by a page
    if options.chat is not None:
        parse_url(options.chat, STORES)
    app = options.make_app(urls)
    import logging

    from holdfast.web.server import make_server

    with options.listen() as listener:
        mode = "with actions" if options.allow_actions else "read-only"
        info(f"the console is at {options.format_url(listener)} ({mode}; Ctrl-C ends it)")
        logging.basicConfig(format="%(asctime)s %(message)s")
        make_server(app).run(sockets=[listener])
