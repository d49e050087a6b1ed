"""Serve files over HTTP on loopback, with nginx if installed, or else Python's server."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from socket import create_connection, socket
from time import sleep

from tools import listeners

_CONFIG = """
{user}
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
worker_processes 2;
events {{ worker_connections 1024; }}
http {{
  access_log off;
  sendfile on;
  tcp_nopush on;
  keepalive_requests 100000;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  server {{ listen 127.0.0.1:{port}; root {root}; }}
}}
"""


@dataclass(frozen=True, slots=True)
class FileServer:
    """A running file server."""

    name: str
    address: str  # http://127.0.0.1:port


@contextmanager
def serving(root: Path, scratch: Path) -> Iterator[FileServer]:
    """Serve the files below `root` until the block is left."""
    port = _find_free_port()
    nginx = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if nginx:
        config = scratch / "nginx.conf"
        config.write_text(
            _CONFIG.format(user=_make_user_line(), folder=scratch, port=port, root=root)
        )
        command = [nginx, "-p", str(scratch), "-c", str(config)]
        name = subprocess.run([nginx, "-v"], capture_output=True, text=True).stderr.split()[-1]
    else:
        command = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"]
        command += ["--directory", str(root)]
        name = "Python's http.server (nginx is not installed)"
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_for(port, server)
        listeners.assert_loopback_only()
        yield FileServer(name, f"http://127.0.0.1:{port}")
    finally:
        server.terminate()
        server.wait(10)


def _make_user_line() -> str:
    """Keep root, because nginx would change to a user that cannot read the files."""
    return "user root;" if os.geteuid() == 0 else ""


def _find_free_port() -> int:
    with socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _wait_for(port: int, server: "subprocess.Popen[bytes]") -> None:
    for _ in range(200):
        assert server.poll() is None, "the file server ended at once"
        try:
            create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            sleep(0.05)
        else:
            return
    raise AssertionError("the file server does not answer")
