"""Read pages of a console, whose lists are read by threads."""

from starlette.testclient import TestClient

from support.waiting import wait_until


def read_page(client: TestClient, path: str) -> str:
    """Return a page as soon as all that it shows is read."""
    pages: list[str] = []

    def is_read() -> bool:
        pages.append(client.get(path).text)
        return 'loading"' not in pages[-1]

    wait_until(is_read)
    return pages[-1]
