"""moto behind real HTTP, as a route of a LoopbackServer.

moto's own server needs Flask. moto executes here what it would execute under `mock_aws`, but
botocore is not mocked, because Holdfast would then call boto3 instead of its own client.
"""

from botocore.awsrequest import AWSPreparedRequest
from botocore.compat import HTTPHeaders
from moto.core.botocore_stubber import BotocoreStubber

from support.http_server import Ask, Route, Wire

_stubber = BotocoreStubber()


def make_moto_route(service: str) -> Route:
    """Make a route that executes each call of a service in moto."""
    url = f"https://{service}.us-east-1.amazonaws.com/"

    def route(ask: Ask, wire: Wire) -> None:
        headers = HTTPHeaders.from_dict(ask.headers)
        request = AWSPreparedRequest(ask.method, url, headers, ask.body, False)
        response = _stubber.process_request(request)
        assert response is not None, f"moto does not know {service}"
        status, fields, body = response
        content = body.encode() if isinstance(body, str) else body
        lines = [
            f"{name}: {value}"
            for name, value in fields.items()
            if name.lower() not in ("content-length", "server", "connection")
        ]
        wire.head(f"{status} moto", *lines, f"Content-Length: {len(content)}")
        wire.send(content)

    return route
