"""Being here puts this folder on the import path, where tests find `support`."""

import gc
import shutil
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from tools import listeners, orphans

from holdfast.testing import ManualClock
from support import memory_folder, run_environment, slow_first

# The contract suites are ordinary modules, so pytest rewrites their asserts only on request.
pytest.register_assert_rewrite("contracts")

run_environment.isolate()
orphans.guard()

# By default hypothesis fails an example that takes 200 ms, and a test whose examples take long
# to make. Both depend on the speed of the machine.
settings.register_profile(
    "any-speed", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("few", settings.get_profile("any-speed"), max_examples=5)
settings.load_profile("any-speed")


@pytest.fixture
def fast_path() -> Iterator[Path]:
    """As tmp_path, in memory where the machine has that: for thousands of small folders."""
    folder = memory_folder.new_folder()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def clock() -> ManualClock:
    """Return a clock that only the test moves."""
    return ManualClock()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the collector of garbage away from the tests' own objects, which live to the end.

    Otherwise it looks at all of them again and again, and a fork copies what it looked at.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Start slow tests first in the processes of pytest-xdist."""
    if workers := getattr(config, "workerinput", {}).get("workercount"):
        items[:] = slow_first.deal(
            items, workers, lambda item: item.path.name in slow_first.SLOW_FILES
        )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None]:
    """Look at a test's servers while they still run; its fixtures end them in any case."""
    try:
        listeners.assert_loopback_only()
    finally:
        yield
