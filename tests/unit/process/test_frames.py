"""Frames between a worker and its children are complete, and reading never blocks."""

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import LeaseLost, MalformedMessage, MessageTooLarge
from holdfast.process.frames import MAX_FRAME_BYTES, BrokenFrame, Frames
from holdfast.worker import child_wire
from holdfast.worker.outcome import Abandoned, Done, Outcome, Reject, Retry


@dataclass
class Line:
    """A pipe with frames at both ends and a non-blocking reader."""

    reads: int
    writes: int
    reader: Frames
    writer: Frames


@pytest.fixture
def line() -> Iterator[Line]:
    reads, writes = os.pipe()
    os.set_blocking(reads, False)
    yield Line(reads, writes, Frames(reads, -1), Frames(-1, writes))
    for fd in (reads, writes):
        try:
            os.close(fd)
        except OSError:
            continue


def test_frames_arrive_whole_and_in_order(line: Line) -> None:
    frames = [(0, b"one"), (2**64 - 1, b"2"), (3, b"three" * 1000)]
    for number, payload in frames:
        line.writer.send(number, payload)
    assert [line.reader.read() for _ in range(4)] == [*frames, None]


def test_an_incomplete_frame_is_not_returned_and_does_not_block(line: Line) -> None:
    for part in (b"\0\0", b"\0\x0c\0\0\0\0", b"\0\0\0\7", b"ab"):
        os.write(line.writes, part)
        assert line.reader.read() is None
    os.write(line.writes, b"cd")
    assert line.reader.read() == (7, b"abcd")


def test_end_of_file_is_raised_after_the_last_frame(line: Line) -> None:
    line.writer.send(1, b"last words")
    os.close(line.writes)
    assert line.reader.read() == (1, b"last words")
    with pytest.raises(EOFError):
        line.reader.read()


def test_a_stopped_reader_does_not_block_the_writer(line: Line) -> None:
    os.set_blocking(line.writes, False)
    payload = os.urandom(1_000_000)
    line.writer.send(1, payload)
    assert line.writer.unsent_bytes > 0
    received = None
    while received is None:
        received = line.reader.read()
        line.writer.flush()
    assert received == (1, payload)
    assert line.writer.unsent_bytes == 0


def test_a_frame_that_is_too_long_is_refused_by_its_length_alone(line: Line) -> None:
    os.write(line.writes, struct.pack("!I", MAX_FRAME_BYTES + 1))
    for _ in range(2):
        with pytest.raises(BrokenFrame, match="2,097,153 bytes"):
            line.reader.read()


@pytest.mark.parametrize("length", [0, 1, 8])
def test_a_frame_without_a_number_and_a_payload_is_refused(line: Line, length: int) -> None:
    os.write(line.writes, struct.pack("!I", length))
    for _ in range(2):
        with pytest.raises(BrokenFrame, match="too short"):
            line.reader.read()


def test_a_frame_that_would_be_refused_is_not_sent(line: Line) -> None:
    with pytest.raises(MessageTooLarge, match="the limit is 2,097,152"):
        line.writer.send(1, b"x" * (MAX_FRAME_BYTES - 7))
    assert line.writer.unsent_bytes == 0
    assert line.reader.read() is None


def test_frames_to_a_closed_peer_are_discarded(line: Line) -> None:
    os.close(line.reads)
    line.writer.send(1, b"lost")
    assert line.writer.unsent_bytes == 0


@pytest.mark.parametrize(
    "outcome",
    [
        Done(),
        Done(result=[1, {"ä": None}]),
        Done(result=False),
        Done(ignored="it is too large"),
        Retry(),
        Retry(1.5, "später", "line\nline"),
        Retry(None, "x", None),
        Reject("nie", "…"),
        Reject("no"),
    ],
)
def test_outcomes_are_unchanged_by_packing(outcome: Outcome) -> None:
    assert child_wire.unpack_outcome(child_wire.pack_outcome(outcome)) == outcome


@pytest.mark.parametrize(
    "outcome",
    [
        "{",
        "null",
        "7",
        "[]",
        '["retry"]',
        '["done", null, "", null, "", false]',
        '["done", 1, 2]',
        '["done", NaN, ""]',
        '["retry", "soon", "", null, "", false]',
        '["retry", true, "", null, "", false]',
        '["retry", NaN, "", null, "", false]',
        '["retry", 1e999, "", null, "", false]',
        '["retry", 1e300, "", null, "", false]',
        f'["retry", 1{"0" * 400}, "", null, "", false]',
        '["retry", null, {"a": 1}, null, "", false]',
        '["retry", null, "", ["detail"], "", false]',
        '["retry", null, "", null, null, false]',
        '["retry", null, "", null, "", 1]',
        '["retry", null, "", null, ""]',
        '[["retry"], null, "", null, "", false]',
        '["reject", null, null, null, "", false]',
        '["reject", null, "", 5, "", false]',
        '["give back", 5, "", null, "", false]',
        "[" * 200_000,
    ],
)
def test_an_outcome_that_no_child_packed_is_refused(outcome: str) -> None:
    with pytest.raises(BrokenFrame):
        child_wire.unpack_outcome(child_wire.OUTCOME + outcome.encode())


@pytest.mark.parametrize("checkpoint", ["", "{", "NaN", "[" * 200_000, "9" * 5000])
def test_a_checkpoint_that_no_child_packed_is_refused(checkpoint: str) -> None:
    with pytest.raises(BrokenFrame):
        child_wire.unpack_save(child_wire.SAVE + checkpoint.encode())


def test_an_abandoned_outcome_cannot_be_packed() -> None:
    with pytest.raises(TypeError):
        child_wire.pack_outcome(Abandoned("me"))


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=30,
)


@settings(deadline=None)
@given(plain)
def test_checkpoints_are_unchanged_by_packing_in_both_directions(checkpoint: object) -> None:
    assert child_wire.unpack_save(child_wire.pack_save(checkpoint)) == checkpoint
    assert child_wire.unpack_response(child_wire.pack_response(checkpoint)) == checkpoint


@pytest.mark.parametrize("checkpoint", [object(), {1, 2}, float("nan"), b"bytes"])
def test_a_checkpoint_that_is_not_plain_data_is_refused_in_the_child(
    checkpoint: object,
) -> None:
    with pytest.raises(MalformedMessage, match="cannot be written as JSON"):
        child_wire.pack_save(checkpoint)


@pytest.mark.parametrize(
    ("error", "kind"), [(LeaseLost("gone"), LeaseLost), (RuntimeError("what"), OSError)]
)
def test_an_error_in_a_response_is_raised_by_the_requester(
    error: Exception, kind: type[Exception]
) -> None:
    with pytest.raises(kind, match=str(error)):
        child_wire.unpack_response(child_wire.pack_response(error=error))
