"""Unclear answers of Twilio, with the real sender and a local server with Twilio's API.

The process that got the answer looks the message up for 30 seconds of its clock. The customer
gets the reply once; only what stays unknown is parked (MS-06, I-MS-2).
"""

from collections.abc import Callable, Iterator
from threading import Event

import pytest

from holdfast.chat.model import ConversationKey
from holdfast.chat.outbox import UnclearReply
from holdfast.chat.providers.twilio import TwilioSender
from holdfast.errors import StoreUnavailable
from holdfast.testing import ManualClock
from holdfast.worker.handler import Result
from holdfast.worker.outcome import Done, Retry
from support.chat.application import AI_CONFIG, Ground
from support.vendors import Fault, VendorServer

KEY = ConversationKey("+491510000001", "c")
CREATED, NOT_CREATED = Fault(status=500, acted=True), Fault(status=503)
UNKNOWN = "it is not known whether the reply was sent"


class WatchedClock(ManualClock):
    """A clock that calls `on_wait` at the start of the next wait of that number."""

    def __init__(self) -> None:
        super().__init__(auto_advance=True)
        self.waits: list[float] = []
        self.on_wait: dict[int, Callable[[], object]] = {}

    def wait(self, event: Event, seconds: float | None) -> bool:
        self.waits.append(seconds or 0.0)
        if action := self.on_wait.pop(len(self.waits), None):
            action()
        return super().wait(event, seconds)


class TwilioGround(Ground):
    """A chat whose replies are sent by Twilio's library to a local server."""

    def __init__(self, vendors: VendorServer, sender: TwilioSender, **policy: object) -> None:
        super().__init__(conversation=False, clock=WatchedClock(), **policy)
        self.books = vendors.books
        self.books.now = self.clock.time
        self.providers.the_sender = sender
        channel = {"sender": "+4930000000", "base_url": vendors.twilio, "credentials_id": "t"}
        self.open(KEY, ai_config=AI_CONFIG, channel_config=channel)

    def ask(self) -> Result:
        """Let the customer write, and answer."""
        self.say("SM1", "hi", **{"from": KEY.primary_channel})
        return self.turn()

    @property
    def outbox(self) -> object:
        """Return the state of the reply."""
        conversation = self.store.get(KEY)
        assert conversation is not None
        return conversation.outbox

    def check_answered_once(self) -> None:
        """Check that one message was sent, and that the history has its sid."""
        self.run_until_quiet()
        (message,) = self.books.messages
        _, reply = self.store.history(KEY)
        assert (reply.body, reply.message_sid) == (message["body"], message["sid"])
        assert self.parked_reasons == []


@pytest.fixture(scope="module")
def sender() -> TwilioSender:
    return TwilioSender()


@pytest.fixture
def vendors() -> Iterator[VendorServer]:
    with VendorServer() as server:
        yield server


@pytest.fixture
def ground(vendors: VendorServer, sender: TwilioSender) -> TwilioGround:
    return TwilioGround(vendors, sender)


@pytest.mark.requirement("R002-064")
@pytest.mark.parametrize(
    "fault",
    [
        CREATED,
        NOT_CREATED,
        Fault(how="close", acted=True),
        Fault(how="close"),
        Fault(how="garbage", acted=True),
        Fault(status=408),
    ],
    ids=str,
)
@pytest.mark.parametrize("listed_after_seconds", [0.0, 14.0, 29.0])
def test_an_unclear_answer_costs_the_customer_nothing(
    ground: TwilioGround, fault: Fault, listed_after_seconds: float
) -> None:
    ground.books.listed_after_seconds = listed_after_seconds
    ground.books.order("twilio.send", fault)
    assert ground.ask() == Done()
    ground.check_answered_once()


@pytest.mark.parametrize("created", [True, False])
def test_a_send_that_times_out_is_looked_up(
    vendors: VendorServer, sender: TwilioSender, created: bool
) -> None:
    ground = TwilioGround(vendors, sender, sender_seconds=0.2)
    ground.books.listed_after_seconds = 10.0
    ground.books.order("twilio.send", Fault(how="hang", acted=created))
    assert ground.ask() == Done()
    ground.check_answered_once()


def test_the_look_ups_wait_longer_each_time_and_end_with_the_first_success(
    ground: TwilioGround,
) -> None:
    ground.books.listed_after_seconds = 10.0
    ground.books.order("twilio.send", CREATED)
    ground.ask()
    assert ground.clock.waits == [1.0, 2.0, 4.0, 8.0]
    assert len(ground.books.asked("twilio.list")) == 4


def test_each_part_of_a_long_reply_is_looked_up(ground: TwilioGround) -> None:
    ground.providers.the_writer.reply = lambda text: "\n\n".join(c * 1500 for c in "aab")
    ground.books.listed_after_seconds = 5.0
    for fault in (CREATED, CREATED, NOT_CREATED):
        ground.books.order("twilio.send", fault)
    ground.ask()
    ground.run_until_quiet()
    assert [text[0] for text in ground.books.sent()] == ["a", "a", "b"]
    _, reply = ground.store.history(KEY)
    assert reply.details["sids"] == [message["sid"] for message in ground.books.messages]


# -- what stays unknown


def test_a_look_up_that_fails_is_repeated(ground: TwilioGround) -> None:
    """Only the last one decides, so that none before it needs an answer."""
    ground.books.order("twilio.send", NOT_CREATED)
    ground.books.order("twilio.list", Fault(status=503), times=4)
    assert ground.ask() == Done()
    ground.check_answered_once()


@pytest.mark.parametrize("fault", [CREATED, NOT_CREATED], ids=str)
def test_an_outage_of_look_ups_leaves_the_decision_to_a_later_attempt(
    ground: TwilioGround, fault: Fault
) -> None:
    """It is noted that the call is over, so the next attempt need not park."""
    ground.books.order("twilio.send", fault)
    ground.books.order("twilio.list", Fault(status=503), times=8)
    assert isinstance(ground.ask(), Retry)
    assert isinstance(ground.outbox, UnclearReply)
    ground.check_answered_once()


def test_a_reply_whose_text_twilio_does_not_keep_is_parked(ground: TwilioGround) -> None:
    ground.books.order("twilio.send", CREATED)
    ground.clock.on_wait = {1: lambda: ground.books.messages[0].update(body="")}
    assert ground.ask() == Done()
    assert ground.parked_reasons == [UNKNOWN]
    assert len(ground.books.messages) == 1


def test_a_deployment_that_allows_no_second_send_parks_what_is_missing(
    vendors: VendorServer, sender: TwilioSender
) -> None:
    ground = TwilioGround(vendors, sender, in_doubt="at_most_once")
    ground.books.order("twilio.send", NOT_CREATED)
    assert ground.ask() == Done()
    assert ground.parked_reasons == [UNKNOWN]
    assert len(ground.books.asked("twilio.send")) == 1


def test_a_part_is_sent_a_limited_number_of_times(ground: TwilioGround) -> None:
    ground.books.order("twilio.send", NOT_CREATED, times=99)
    ground.ask()
    ground.run_until_quiet()
    assert ground.parked_reasons == ["the provider failed to send the reply 5 times"]
    assert len(ground.books.asked("twilio.send")) == 5


def test_a_refusal_after_an_unclear_answer_parks(ground: TwilioGround) -> None:
    ground.books.order("twilio.send", NOT_CREATED)
    ground.books.order("twilio.send", Fault(status=400, code="21610"))
    assert ground.ask() == Done()
    assert ground.parked_reasons == [
        "Twilio refused: 400, error 21610: the customer has opted out"
    ]


# -- the worker between two look-ups


@pytest.mark.parametrize("fault", [CREATED, NOT_CREATED], ids=str)
@pytest.mark.parametrize("wait", [1, 4, 5])
def test_a_worker_that_loses_its_lease_between_look_ups_sends_nothing(
    ground: TwilioGround, fault: Fault, wait: int
) -> None:
    """Another worker takes over, and looks the message up for as long again."""

    def take_over() -> None:
        ground.clock.advance(61.0)
        assert ground.turn(0.0) == Done()

    ground.books.order("twilio.send", fault)
    ground.books.listed_after_seconds = 70.0
    ground.clock.on_wait = {wait: take_over}
    assert isinstance(ground.ask(), Retry)
    ground.check_answered_once()


def test_a_lease_that_ends_between_look_ups_leaves_the_state_as_it_is(
    ground: TwilioGround,
) -> None:
    ground.books.order("twilio.send", NOT_CREATED)
    ground.clock.on_wait = {3: lambda: ground.clock.advance(61.0)}
    assert isinstance(ground.ask(), Retry)
    assert isinstance(ground.outbox, UnclearReply)
    assert len(ground.books.asked("twilio.list")) == 2
    assert ground.books.messages == []
    ground.check_answered_once()


@pytest.mark.parametrize("fault", [CREATED, NOT_CREATED], ids=str)
def test_a_worker_that_stops_between_look_ups_leaves_them_to_the_next(
    ground: TwilioGround, fault: Fault
) -> None:
    ground.books.listed_after_seconds = 20.0
    ground.books.order("twilio.send", fault)
    ground.clock.on_wait = {2: ground.stopping.set}
    assert isinstance(ground.ask(), Retry)
    assert isinstance(ground.outbox, UnclearReply)
    assert len(ground.clock.waits) == 2
    ground.stopping.clear()
    ground.check_answered_once()


def test_look_ups_end_when_a_send_would_no_longer_fit_into_the_attempt(
    ground: TwilioGround,
) -> None:
    """A Lambda function is cut off after the timeouts of writer and sender."""

    def think(text: str) -> str:
        ground.clock.advance(ground.policy.writer_seconds - 5.0)
        return "at last"

    ground.providers.the_writer.reply = think
    ground.books.order("twilio.send", NOT_CREATED)
    assert isinstance(ground.ask(), Retry)
    assert ground.clock.waits == [1.0, 2.0]
    assert ground.books.messages == []
    ground.check_answered_once()
    assert len(ground.providers.the_writer.asked) == 1


def test_a_note_that_fails_does_not_end_the_look_ups(ground: TwilioGround) -> None:
    """The process knows that its call is over, whatever the store says."""
    note = ground.store.note

    def failing(grant: object, outbox: object, thread_id: str) -> None:
        if isinstance(outbox, UnclearReply):
            raise StoreUnavailable("throttled")
        note(grant, outbox, thread_id)

    ground.store.note = failing
    ground.books.order("twilio.send", NOT_CREATED)
    assert ground.ask() == Done()
    ground.check_answered_once()
