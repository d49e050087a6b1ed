"""The contract suite for your own queue: what every queue must do.

    from holdfast.testing.contracts import QueueContract

    class TestMyQueue(QueueContract):
        @pytest.fixture
        def make_queue(self, clock): ...

It needs pytest. Loaded on first use.
"""

from holdfast._lazy import lazy_exports

__all__, __getattr__ = lazy_exports(
    __name__,
    {"testing.contracts.queue.contract": "QueueContract"},
)
