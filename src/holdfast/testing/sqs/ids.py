"""Where the service's ids come from: the same for the same seed."""

import base64
import uuid
from random import Random


class IdSource:
    """Called under the service's lock."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def uuid(self) -> str:
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))

    def handle(self) -> str:
        """A receipt or task handle: long, opaque, never the same twice."""
        return base64.b64encode(self._random.randbytes(96)).decode()
