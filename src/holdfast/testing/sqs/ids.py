"""The source of the service's ids, which are the same for the same seed."""

import base64
import uuid
from random import Random


class IdSource:
    """Generates ids. The caller must hold the service's lock."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def make_uuid(self) -> str:
        """Return a new message or request id."""
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))

    def make_handle(self) -> str:
        """Return a new receipt or task handle, which is long and opaque."""
        return base64.b64encode(self._random.randbytes(96)).decode()
