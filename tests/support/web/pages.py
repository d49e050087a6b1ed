"""Open consoles, read their pages, whose lists are read by threads, and send their forms."""

from typing import Any

from starlette.testclient import TestClient

from holdfast.web import web_app
from support.waiting import wait_until

HOST = "http://127.0.0.1"
ORIGIN = {"Origin": HOST}


def open_console(*queues: Any, **options: Any) -> TestClient:
    """Return a client of a console with these queues and options."""
    app = web_app(queues, **options)
    return TestClient(app, base_url=HOST, follow_redirects=False, raise_server_exceptions=False)


def post_form(client: TestClient, path: str, **form: str) -> Any:
    """Send a form, as a page of the console does."""
    return client.post(path, data=form, headers=ORIGIN)


def read_page(client: TestClient, path: str) -> str:
    """Return a page as soon as all that it shows is read."""

    def read_if_complete() -> str:
        page = client.get(path).text
        return "" if 'loading"' in page else page

    return wait_until(read_if_complete)
