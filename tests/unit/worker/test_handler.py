"""Loading a handler, reading its signature, and clear errors if that fails."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from holdfast.errors import ConfigError, HandlerNotFound
from holdfast.queue.message import AnyMessage, Message, QueueMessage
from holdfast.testing import MemoryQueue
from holdfast.worker.handler import (
    check_message_type,
    find_message_model,
    inspect_handler,
    load_handler,
)
from holdfast.worker.worker import Worker

if TYPE_CHECKING:
    from decimal import Decimal as OnlyForTypeCheckers


class Enrich(QueueMessage):
    url: str = ""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a function that writes a module which can be imported by name."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)

    def write(name: str, source: str) -> None:
        (tmp_path / f"{name}.py").write_text(dedent(source))

    yield write
    for name in set(sys.modules) - before:
        del sys.modules[name]


class TestLoading:
    def test_a_function_is_found_by_module_and_name(self, module: Any) -> None:
        module("hf_good", "def handle(message, ctx): return 'this one'")
        assert load_handler("hf_good:handle")(1, 2) == "this one"

    def test_a_method_of_an_object_is_found_by_its_dotted_name(self, module: Any) -> None:
        module(
            "hf_dotted",
            """
            class App:
                def handle(self, message): return "bound"
            app = App()
            """,
        )
        assert load_handler("hf_dotted:app.handle")(1) == "bound"

    @pytest.mark.parametrize("path", ["", "tasks", "tasks:", ":handle", ":"])
    def test_a_path_without_module_and_name_is_refused(self, path: str) -> None:
        with pytest.raises(HandlerNotFound, match="is not MODULE:NAME"):
            load_handler(path)

    def test_a_missing_module_is_named(self) -> None:
        with pytest.raises(HandlerNotFound, match="no module 'hf_nowhere'"):
            load_handler("hf_nowhere:handle")

    def test_a_missing_package_of_a_dotted_module_is_named(self) -> None:
        with pytest.raises(HandlerNotFound, match="no module 'hf_nowhere'"):
            load_handler("hf_nowhere.tasks:handle")

    def test_the_import_that_failed_inside_the_module_is_named(self, module: Any) -> None:
        module("hf_needs", "import hf_not_installed")
        with pytest.raises(HandlerNotFound, match="hf_needs needs 'hf_not_installed'"):
            load_handler("hf_needs:handle")

    @pytest.mark.parametrize("line", ["1 / 0", "raise SystemExit(3)", "def broken(:"])
    def test_a_module_that_fails_to_load_says_why(self, module: Any, line: str) -> None:
        module("hf_breaks", line)
        with pytest.raises(HandlerNotFound, match="importing hf_breaks failed: ") as raised:
            load_handler("hf_breaks:handle")
        assert "\n" not in str(raised.value)

    def test_a_misspelt_name_suggests_similar_names(self, module: Any) -> None:
        module("hf_near", "def handle_task(message): ...")
        with pytest.raises(HandlerNotFound, match="did you mean handle_task"):
            load_handler("hf_near:handle_tsak")

    @pytest.mark.parametrize(
        ("source", "problem"),
        [
            ("handle = 7", "cannot be called"),
            ("class handle: ...", "is a class"),
            ("def handle(): ...", "does not fit"),
            ("def handle(a, b, c): ...", "does not fit"),
            ("def handle(*, message): ...", "does not fit"),
            ("def handle(message): yield", "yields"),
            ("async def handle(message): yield", "yields"),
        ],
    )
    def test_an_object_that_cannot_handle_messages_is_refused(
        self, module: Any, source: str, problem: str
    ) -> None:
        module("hf_unfit", source)
        with pytest.raises(HandlerNotFound, match=problem) as raised:
            load_handler("hf_unfit:handle")
        assert "\n" not in str(raised.value)


async def a_coroutine(message: Enrich) -> None: ...


def a_function(message: Enrich, ctx: Any) -> None: ...


def by_name(message: "Enrich", ctx: "OnlyForTypeCheckers") -> None: ...


def unknown(message: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821


def loose(message, ctx=None):  # type: ignore[no-untyped-def]
    ...


def any_number(*everything: Any) -> None: ...


class Callable_:
    def __call__(self, message: Enrich) -> None: ...

    async def coroutine(self, message: Enrich, ctx: Any) -> None: ...


@wraps(a_coroutine)
def decorated(*args: Any, **kwargs: Any) -> Any:
    return a_coroutine(*args, **kwargs)


class TestKind:
    @pytest.mark.parametrize(
        ("handler", "takes_context", "is_async"),
        [
            (a_function, True, False),
            (a_coroutine, False, True),
            (loose, True, False),
            (any_number, True, False),
            (Callable_(), False, False),
            (Callable_().coroutine, True, True),
            (decorated, False, True),
            (partial(a_function, ctx=None), False, False),
            (partial(a_coroutine), False, True),
            (lambda message: None, False, False),
        ],
    )
    def test_it_is_read_from_the_handler(
        self, handler: Any, takes_context: bool, is_async: bool
    ) -> None:
        shape = inspect_handler(handler)
        assert (shape.takes_context, shape.is_async) == (takes_context, is_async)


class TestMessageModel:
    @pytest.mark.parametrize(
        "handler",
        [a_function, a_coroutine, by_name, Callable_(), Callable_().coroutine, decorated],
    )
    def test_it_is_the_annotation_of_the_first_parameter(self, handler: Any) -> None:
        assert find_message_model(handler) is Enrich

    @pytest.mark.parametrize("handler", [loose, any_number, lambda message: None, print])
    def test_without_an_annotation_any_message_will_do(self, handler: Any) -> None:
        assert find_message_model(handler) is AnyMessage

    def test_the_bare_base_class_means_any_message(self) -> None:
        def handle(message: QueueMessage) -> None: ...

        assert find_message_model(handle) is AnyMessage

    def test_an_annotation_that_is_not_a_message_means_any_message(self) -> None:
        def handle(message: dict[str, Any]) -> None: ...

        assert find_message_model(handle) is AnyMessage

    def test_a_name_that_cannot_be_found_is_an_error_and_not_a_guess(self) -> None:
        with pytest.raises(ConfigError, match=r"unknown: the message type 'Nowhere'"):
            find_message_model(unknown)


@dataclass
class Order:
    product: str


class TestMessageType:
    @pytest.mark.parametrize(
        "annotation",
        [Enrich, QueueMessage, object, Any, Enrich | None, AnyMessage | Enrich, TypeVar("T")],
    )
    def test_the_model_and_what_includes_it_are_accepted(self, annotation: Any) -> None:
        check_message_type(annotated(annotation), Enrich)

    @pytest.mark.parametrize(
        "handler", [loose, any_number, lambda message: None, print, unknown]
    )
    def test_what_says_nothing_about_the_message_is_accepted(self, handler: Any) -> None:
        check_message_type(handler, Enrich)

    @pytest.mark.parametrize("annotation", [AnyMessage, dict, dict[str, Any], str | None])
    def test_another_type_is_refused_with_both_names(self, annotation: Any) -> None:
        with pytest.raises(ConfigError, match="but the queue delivers Enrich: annotate the"):
            check_message_type(annotated(annotation), Enrich)

    def test_a_payload_is_not_the_message(self) -> None:
        with pytest.raises(
            ConfigError,
            match=r"takes Order, but the queue delivers Message\[Order\]: .*payload",
        ):
            check_message_type(annotated(Order), Message[Order])
        check_message_type(annotated(Message[Order]), Message[Order])

    def test_a_queue_that_does_not_say_its_type_is_accepted(self) -> None:
        check_message_type(a_function, None)

    def test_a_worker_refuses_the_handler_of_another_message_before_it_polls(self) -> None:
        queue = MemoryQueue()
        queue.push(AnyMessage())
        with pytest.raises(
            ConfigError, match=r"^a_function takes Enrich, but the queue delivers AnyMessage: "
        ):
            Worker(queue, a_function)
        assert queue.stats().ready == 1


def annotated(annotation: Any) -> Any:
    """Return a handler whose message has this annotation."""

    def handle(message: Any) -> None: ...

    handle.__annotations__["message"] = annotation
    return handle
