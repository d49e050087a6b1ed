"""Messages, their lease, their schema versions and their encoding."""

import copy
import json
import pickle
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, ValidationError

from holdfast.errors import (
    ConfigError,
    MalformedMessage,
    MessageTooLarge,
    NewerSchema,
    NotLeased,
)
from holdfast.lease.lease import Lease, Refused, Renewal
from holdfast.queue.message import (
    MAX_BYTES,
    AnyMessage,
    Message,
    MessageCodec,
    QueueMessage,
    Upgrader,
    attach_lease,
    get_lease,
    to_message_model,
)


class Parcel(QueueMessage):
    weight: int
    label: str = ""


def make_model(version: int, **steps: Upgrader) -> type[QueueMessage]:
    """Return a model of this version. `v1=…` is the upgrader from version 1 to 2."""

    class Versioned(QueueMessage):
        upgraders: ClassVar[Mapping[int, Upgrader]] = {
            int(name[1:]): upgrader for name, upgrader in steps.items()
        }
        schema_version: int = version
        weight: int

    return Versioned


class Source:
    name = "source"
    renew_batch = 1

    def renew(self, leases: Any, seconds: float) -> list[Renewal]:
        return [Refused("a source for tests")]


def attach_new_lease(message: QueueMessage, attempt: int = 3) -> Lease:
    lease = Lease(
        Source(),
        "the-receipt",
        message_id=message.id,
        attempt=attempt,
        fence=7,
        claimed_at=0.0,
        seconds=60.0,
    )
    attach_lease(message, lease)
    return lease


# -- the message


def test_an_error_quotes_no_value_of_a_message() -> None:
    class Charge(QueueMessage):
        amount: int

    with pytest.raises(ValidationError) as raised:
        Charge(amount="canary")  # type: ignore[arg-type]
    assert "amount" in str(raised.value)
    assert "canary" not in str(raised.value)


@pytest.mark.requirement("R001-015")
def test_a_new_message_has_an_id_of_its_own_and_no_attempts() -> None:
    first, second = Parcel(weight=1), Parcel(weight=1)
    assert first.id != second.id
    assert (first.schema_version, first.attempts) == (1, 0)
    assert first.created_at.tzinfo is UTC


@pytest.mark.requirement("R001-015")
@pytest.mark.parametrize("bad", ["", "x" * 513, 5, None, "\ud800"])
def test_an_id_is_text_of_1_to_512_characters(bad: Any) -> None:
    with pytest.raises(ValidationError, match="id"):
        Parcel(id=bad, weight=1)


def test_the_current_version_is_the_one_the_code_writes() -> None:
    assert Parcel.current_version() == 1
    assert make_model(4).current_version() == 4


def test_any_message_keeps_fields_it_does_not_know() -> None:
    assert AnyMessage(city="Basel").model_dump()["city"] == "Basel"


def test_a_field_that_the_model_does_not_have_is_refused() -> None:
    with pytest.raises(ValidationError, match="lable"):
        Parcel(weight=1, lable="x")  # type: ignore[call-arg]


def test_a_model_may_choose_to_ignore_unknown_fields() -> None:
    class Loose(Parcel):
        model_config = ConfigDict(extra="ignore")

    parcel = MessageCodec(Loose).decode(b'{"weight": 1, "lable": "x"}')
    assert parcel.weight == 1


# -- payloads


class Address(BaseModel):
    street: str


@dataclass
class Letter:
    to: Address
    pages: int = 1


@pytest.mark.parametrize("payload", [Letter(Address(street="Here")), Address(street="Here")])
def test_a_payload_comes_back_as_an_equal_object_of_its_class(payload: Any) -> None:
    codec = MessageCodec(to_message_model(type(payload)))
    message = Message(payload=payload, id="a")
    received: Any = codec.decode(codec.encode(message))
    assert (received.id, received.payload) == ("a", payload)
    assert type(received.payload) is type(payload)


def test_a_message_has_the_type_of_its_payload() -> None:
    message = Message(payload=Letter(Address(street="Here")))
    assert type(message) is Message[Letter] is to_message_model(Letter)
    with pytest.raises(
        MalformedMessage, match=r"takes Message\[Letter\], not Message\[Address\]"
    ):
        MessageCodec(Message[Letter]).encode(Message(payload=Address(street="Here")))  # type: ignore[arg-type]


def test_a_payload_that_does_not_fit_names_its_field() -> None:
    with pytest.raises(MalformedMessage, match=r"Message\[Letter\]: payload.pages: "):
        MessageCodec(Message[Letter]).decode(
            b'{"id": "a", "payload": {"to": {"street": "Here"}, "pages": "hunter2"}}'
        )


def test_a_message_type_of_ones_own_is_taken_as_it_is() -> None:
    assert to_message_model(Parcel) is Parcel
    assert to_message_model(AnyMessage) is AnyMessage


@pytest.mark.parametrize("bad", [str, dict, list[int], "Letter", None, Letter | None])
def test_a_type_that_cannot_be_a_payload_is_refused(bad: Any) -> None:
    with pytest.raises(ConfigError, match="is not a message type; use a QueueMessage"):
        to_message_model(bad)


# -- the lease of a message


def test_a_message_without_a_lease_says_what_to_do() -> None:
    with pytest.raises(NotLeased, match=r"'a' holds no lease: settle the object that poll\(\)"):
        get_lease(Parcel(id="a", weight=1))


@pytest.mark.requirement("R001-020")
def test_a_polled_message_carries_its_lease_and_attempt() -> None:
    message = Parcel(weight=1)
    lease = attach_new_lease(message, attempt=3)
    assert get_lease(message) is lease
    assert message.attempts == 3


def test_the_lease_property_returns_the_lease_of_a_polled_message() -> None:
    message = Parcel(weight=1)
    with pytest.raises(NotLeased, match="holds no lease"):
        message.lease  # noqa: B018
    lease = attach_new_lease(message)
    assert message.lease is lease


def test_an_unknown_attribute_of_a_message_is_still_an_attribute_error() -> None:
    message = Parcel(weight=1)
    attach_new_lease(message)
    with pytest.raises(AttributeError, match="no attribute 'colour'"):
        message.colour  # type: ignore[attr-defined]  # noqa: B018


def test_a_field_called_lease_keeps_its_value_and_hides_the_lease() -> None:
    class Rental(QueueMessage):
        lease: str  # type: ignore[assignment]

    with pytest.raises(ValidationError, match="lease"):
        Rental()  # it is required, and the property is not its default
    message = Rental(lease="two years")
    lease = attach_new_lease(message)
    assert message.lease == "two years"
    assert get_lease(message) is lease
    codec = MessageCodec(Rental)
    assert codec.decode(codec.encode(message)).lease == "two years"


def test_any_data_called_lease_keeps_its_value_and_hides_the_lease() -> None:
    message = AnyMessage(lease="two years")
    lease = attach_new_lease(message)
    assert message.lease == "two years"  # type: ignore[comparison-overlap]
    assert get_lease(message) is lease


def test_the_lease_does_not_count_as_a_change_of_the_message() -> None:
    message = Parcel(id="a", weight=1, attempts=3)
    twin = message.model_copy()
    attach_new_lease(message, attempt=3)
    assert message == twin
    assert message.model_fields_set == twin.model_fields_set


@pytest.mark.parametrize(
    "make_copy",
    [
        lambda message: message.model_copy(),
        lambda message: message.model_copy(deep=True),
        copy.copy,
        copy.deepcopy,
        lambda message: pickle.loads(pickle.dumps(message)),
        lambda message: type(message).model_validate(message.model_dump()),
        lambda message: type(message).model_validate_json(message.model_dump_json()),
    ],
    ids=["model_copy", "deep model_copy", "copy", "deepcopy", "pickle", "dict", "JSON"],
)
def test_no_copy_of_a_message_carries_the_lease(make_copy: Callable[[Any], Any]) -> None:
    message = Parcel(weight=1)
    attach_new_lease(message)
    with pytest.raises(NotLeased):
        get_lease(make_copy(message))


def test_nothing_that_prints_a_message_prints_its_receipt() -> None:
    message = Parcel(weight=1)
    lease = attach_new_lease(message)
    printed = [repr(message), str(message), message.model_dump_json(), repr(lease)]
    printed.append(repr(message.model_dump()))
    assert not [text for text in printed if "the-receipt" in text]


# -- encoding


def test_a_message_is_unchanged_by_encoding_and_decoding() -> None:
    codec = MessageCodec(Parcel)
    parcel = Parcel(weight=3, label="grün \0 \U0001f642", created_at=datetime.now(UTC))
    assert codec.decode(codec.encode(parcel)) == parcel


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner)
    ),
    max_leaves=20,
)


@given(payload=JSON, message_id=st.text(st.characters(codec="utf-8"), min_size=1, max_size=512))
def test_any_json_survives_the_codec(payload: Any, message_id: str) -> None:
    codec = MessageCodec(AnyMessage)
    message = AnyMessage(id=message_id, payload=payload)
    received = codec.decode(codec.encode(message))
    assert (received.id, received.payload) == (message_id, payload)  # type: ignore[attr-defined]


@given(body=st.binary(max_size=200))
def test_any_bytes_are_a_message_or_malformed(body: bytes) -> None:
    with pytest.raises(MalformedMessage):
        MessageCodec(Parcel).decode(body)


@given(data=JSON, version=JSON)
def test_any_json_is_a_message_or_one_of_two_errors(data: Any, version: Any) -> None:
    codec = MessageCodec(make_model(2, v1=lambda data: data))
    body = json.dumps({"weight": data, "label": data, "schema_version": version}).encode()
    with suppress(MalformedMessage, NewerSchema):
        assert codec.decode(body).schema_version == 2


def test_the_limit_is_exact() -> None:
    codec = MessageCodec(Parcel)
    parcel = Parcel(id="big", weight=1)
    parcel.label = "x" * (MAX_BYTES - len(codec.encode(parcel)))
    assert len(codec.encode(parcel)) == MAX_BYTES
    parcel.label += "x"
    with pytest.raises(
        MessageTooLarge, match="'big' is 1,048,577 bytes, the limit is 1,048,576"
    ):
        codec.encode(parcel)


def test_a_queue_may_have_a_smaller_limit() -> None:
    with pytest.raises(MessageTooLarge, match="the limit is 50"):
        MessageCodec(Parcel, max_bytes=50).encode(Parcel(weight=1))


@pytest.mark.parametrize("value", [object(), b"\xff", "\ud800", test_the_limit_is_exact])
def test_a_value_that_json_cannot_represent_is_refused_when_encoding(value: Any) -> None:
    with pytest.raises(MalformedMessage, match="'a' cannot be written as JSON"):
        MessageCodec(AnyMessage).encode(AnyMessage(id="a", value=value))


def test_a_circular_value_is_refused_when_encoding() -> None:
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(MalformedMessage, match="cannot be written as JSON"):
        MessageCodec(AnyMessage).encode(AnyMessage(value=circle))


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", "not JSON"),
        (b'{"id": "a"', "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 200_000, "not JSON"),
        (b"[]", "a JSON object is needed, this is a list"),
        (b"null", "a JSON object is needed, this is a NoneType"),
        (b'{"id": "a"}', "not a valid Parcel: weight: Field required"),
        (b'{"id": 5}', r"not a valid Parcel: id: .* \(and 1 more\)"),
        (b'{"weight": 1, "wieght": 2}', "not a valid Parcel: 'wieght': unknown field$"),
        (b'{"weight": 1, "\\n' + b"x" * 99 + b'": 2}', r"Parcel: '\\nx{63}': unknown field$"),
        (b'{"weight": 1, "schema_version": 1.5}', "schema_version is a float"),
        (b'{"weight": 1, "schema_version": null}', "schema_version is a NoneType"),
        (b'{"weight": 1, "schema_version": 0}', "no upgrader from schema_version 0 to 1"),
        (b'{"weight": 1, "schema_version": -5}', "no upgrader from schema_version -5 to -4"),
    ],
)
def test_malformed_bytes_say_what_is_wrong(body: bytes, problem: str) -> None:
    with pytest.raises(MalformedMessage, match=problem) as caught:
        MessageCodec(Parcel).decode(body)
    assert "\n" not in str(caught.value)


def test_a_malformed_body_is_not_quoted() -> None:
    with pytest.raises(MalformedMessage) as caught:
        MessageCodec(Parcel).decode(b'{"weight": "hunter2", "label": ["hunter2"]}')
    assert "hunter2" not in str(caught.value)


def test_a_malformed_version_is_not_quoted_either() -> None:
    body = b'{"weight": 1, "schema_version": "' + b"hunter2" * 1000 + b'"}'
    with pytest.raises(MalformedMessage) as caught:
        MessageCodec(Parcel).decode(body)
    assert "hunter2" not in str(caught.value)


# -- schema versions


def test_a_body_without_a_version_is_version_one() -> None:
    parcel = MessageCodec(Parcel).decode(b'{"id": "a", "weight": 3}')
    assert (parcel.schema_version, parcel.weight) == (1, 3)
    upgraded = MessageCodec(make_model(2, v1=lambda data: {**data, "weight": 9}))
    assert upgraded.decode(b'{"id": "a"}').weight == 9  # type: ignore[attr-defined]


def test_an_older_version_goes_through_every_upgrader_in_turn() -> None:
    model = make_model(
        3,
        v1=lambda data: {**data, "kilos": data["pounds"] / 2},
        v2=lambda data: {**data, "weight": int(data["kilos"])},
    )
    message = MessageCodec(model).decode(b'{"id": "a", "schema_version": 1, "pounds": 8}')
    assert message.weight == 4  # type: ignore[attr-defined]
    assert (message.id, message.schema_version) == ("a", 3)


def test_an_upgrader_need_not_remove_what_the_new_version_does_not_have() -> None:
    model = make_model(2, v1=lambda data: {**data, "weight": data["pounds"] // 2})
    message = MessageCodec(model).decode(b'{"id": "a", "pounds": 8, "note": "x"}')
    assert message.model_dump().keys() == {*QueueMessage.model_fields, "weight"}


def test_a_bad_field_is_reported_after_an_upgrade_although_unknown_fields_are_dropped() -> None:
    model = make_model(2, v1=lambda data: {**data, "weight": "heavy"})
    with pytest.raises(MalformedMessage, match="not a valid Versioned: weight: "):
        MessageCodec(model).decode(b'{"id": "a", "note": "x"}')


def test_an_older_version_that_happens_to_fit_is_upgraded_all_the_same() -> None:
    model = make_model(2, v1=lambda data: {**data, "weight": data["weight"] * 1000})
    message = MessageCodec(model).decode(b'{"schema_version": 1, "weight": 2}')
    assert message.weight == 2000  # type: ignore[attr-defined]


def test_the_current_version_goes_through_no_upgrader() -> None:
    model = make_model(2, v1=lambda data: {**data, "weight": -1})
    message = MessageCodec(model).decode(b'{"schema_version": 2, "weight": 2}')
    assert message.weight == 2  # type: ignore[attr-defined]


def test_a_missing_upgrader_is_named_with_its_remedy() -> None:
    model = make_model(3, v1=lambda data: data)
    with pytest.raises(MalformedMessage, match=r"Versioned\.upgraders\[2\], then redrive"):
        MessageCodec(model).decode(b'{"schema_version": 1, "weight": 2}')


def test_an_upgrader_that_fails_makes_the_message_malformed() -> None:
    model = make_model(2, v1=lambda data: {"weight": data["pounds"]})
    with pytest.raises(
        MalformedMessage, match="upgrader from schema_version 1 failed: KeyError"
    ):
        MessageCodec(model).decode(b'{"schema_version": 1}')


def test_an_upgrader_that_returns_nothing_makes_the_message_malformed() -> None:
    model = make_model(2, v1=lambda data: data.update(weight=1))  # type: ignore[arg-type, return-value]
    with pytest.raises(MalformedMessage, match="upgrader from schema_version 1"):
        MessageCodec(model).decode(b'{"schema_version": 1}')


def test_an_upgrader_that_makes_no_valid_message_makes_it_malformed() -> None:
    model = make_model(2, v1=lambda data: {**data, "weight": "heavy"})
    with pytest.raises(MalformedMessage, match="not a valid Versioned: weight"):
        MessageCodec(model).decode(b'{"schema_version": 1}')


@pytest.mark.parametrize(
    "body",
    [
        b'{"id": "a", "weight": 1, "schema_version": 2}',
        b'{"schema_version": 99}',
        b'{"weight": 1, "unknown": 1, "schema_version": 2}',
        b'{"id": 5, "weight": "in a way we do not know yet", "schema_version": 2}',
    ],
    ids=["fits", "problem nothing else", "unknown field", "does not fit"],
)
def test_a_newer_version_is_recognised_whatever_its_other_fields(body: bytes) -> None:
    with pytest.raises(NewerSchema, match="newer than this code's 1: run newer workers"):
        MessageCodec(Parcel).decode(body)


# -- unknown fields


def encode_at(created_at: str, **fields: Any) -> bytes:
    return json.dumps({"id": "a", "weight": 1, "created_at": created_at, **fields}).encode()


def format_now(**offset: float) -> str:
    return (datetime.now(UTC) + timedelta(**offset)).isoformat()


@pytest.mark.parametrize("offset", [{}, {"minutes": -59}, {"minutes": 5}])
def test_a_recent_message_with_an_unknown_field_waits_for_newer_code(
    offset: dict[str, float],
) -> None:
    body = encode_at(format_now(**offset), colour="red")
    with pytest.raises(
        NewerSchema, match=r"^not a valid Parcel: 'colour': unknown field: run newer workers"
    ) as e:
        MessageCodec(Parcel).decode(body)
    assert (e.value.version, e.value.message_id) == (1, "a")


@pytest.mark.parametrize(
    "make_time",
    [
        lambda: format_now(minutes=-61),
        lambda: format_now(minutes=61),
        lambda: "0001-01-01T00:00:00",
        lambda: "soon",
    ],
    ids=["too old", "in the future", "year 1", "no time"],
)
def test_an_unknown_field_does_not_wait_for_ever(make_time: Callable[[], str]) -> None:
    with pytest.raises(MalformedMessage, match="not a valid Parcel: "):
        MessageCodec(Parcel).decode(encode_at(make_time(), colour="red"))


def test_a_message_with_another_problem_does_not_wait() -> None:
    body = encode_at(format_now(), weight="heavy", colour="red")
    with pytest.raises(MalformedMessage, match=r"weight: .* \(and 1 more\)"):
        MessageCodec(Parcel).decode(body)


def test_an_unknown_field_of_a_strict_payload_waits_too() -> None:
    class Strict(Address):
        model_config = ConfigDict(extra="forbid")

    body = json.dumps({"created_at": format_now(), "payload": {"street": "x", "city": "y"}})
    with pytest.raises(NewerSchema, match=r"'payload.city': unknown field"):
        MessageCodec(Message[Strict]).decode(body.encode())
