"""Open consoles, read their pages, whose lists are read by threads, and send their forms."""

import re
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


def find_form_token(client: TestClient, path: str) -> str:
    """Return the token of the forms of a page."""
    match = re.search(r'name="form_token" value="([^"]+)"', client.get(path).text)
    assert match is not None
    return match[1]


def post_form(client: TestClient, page: str, path: str, **form: str) -> Any:
    """Send a form of a page, as a browser does."""
    data = {"form_token": find_form_token(client, page), **form}
    return client.post(path, data=data, headers=ORIGIN)


def read_page(client: TestClient, path: str) -> str:
    """Return a page as soon as all that it shows is read."""

    def read_if_complete() -> str:
        page = client.get(path).text
        return "" if 'loading"' in page else page

    return wait_until(read_if_complete)
