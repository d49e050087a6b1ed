"""The model of the conversations: staging, triggers, the messaging function and the sweeper.

Every turn and every trigger is simulated. Messages of a customer are counted with their turn,
and conversations do not share a customer, so that no two turns meet at one lock.

    fragments ─▶ staged ─▶ trigger after the window ─▶ invocation ─┬─ answered: counted once
                                    ▲   ▲                         ├─ fails ─▶ retried after the
                                    │   └─────────────────────────┘           backoff
                                    └── sweeper ◀─ no trigger left ◀─ last attempt: dead letter
"""

from collections import deque
from collections.abc import Iterator
from math import ceil

from bench.scale.latencies import LATENCIES
from bench.scale.service import Part, World, swing
from holdfast.chat.batching import compute_typing_seconds

CHANNEL_SHARES = {"whatsapp": 0.7, "sms": 0.2, "email": 0.1}
TURN_SECONDS = 7.9  # mean, for the size of the deployment
ACCOUNT_CONCURRENCY = 1_000
_FIRST_CONCURRENCY, _MORE_PER_SECOND = 5, 5  # of an event source mapping: 300 more a minute
_FAIL_SECONDS = 0.3  # a connection that is refused
_STORE_FAILS_SECONDS = 8.0  # all tries of the DynamoDB client
_POLL_SECONDS = 20.0  # of the event source
_ROW_BYTES = 350  # of a staged message


class Turn:
    """The messages that one reply answers."""

    __slots__ = (
        "answered", "channel", "fragments", "key", "last_at", "locked", "opened_at",
        "window_until", "written",
    )  # fmt: skip

    def __init__(
        self, opened_at: float, key: float, channel: "Channel", fragments: int
    ) -> None:
        self.opened_at = self.last_at = opened_at
        self.key, self.channel, self.fragments = key, channel, fragments
        self.answered = self.written = self.locked = False
        self.window_until = 0.0


class Channel:
    """A queue of triggers, each with its attempts, and the event source mapping."""

    def __init__(self, max_concurrency: int) -> None:
        self.max_concurrency = max_concurrency
        self.visible: deque[tuple[Turn, int]] = deque()
        self.running = self.hidden = 0
        self.allowed = min(_FIRST_CONCURRENCY, max_concurrency)
        self.ramps = False


class ChatModel(Part):
    """All conversations."""

    def __init__(self, world: World, per_second: float) -> None:
        super().__init__(world)
        self._policy, self._queue = world.deployment.chat, world.deployment.queue
        self._per_second = per_second
        self._flow_seconds = {
            name: sum(
                number * LATENCIES[call.partition(".")[0]]
                for call, number in flow.items()
                if call.partition(".")[2][:1].isupper()
            )
            for name, flow in world.usage.flows.items()
        }
        limits = world.deployment.max_concurrency
        self._channels = {name: Channel(limits[name]) for name in CHANNEL_SHARES}
        self._running = self._warm = 0
        self.open: dict[Turn, None] = {}

    def start(self) -> None:
        """Let customers write, and the sweeper run."""
        self.simulation.after(self.random.expovariate(self._per_second), self._stage_next)
        self.simulation.after(self.deployment.sweep_every_seconds, self._sweep)
        self.simulation.after(600.0, self._cool_down)

    # -- staging

    def _stage_next(self) -> None:
        if self.is_producing:
            self._stage(self.simulation.now)
            rate = self._per_second * swing(self.simulation.now)
            self.simulation.after(self.random.expovariate(rate), self._stage_next)

    def _stage(self, now: float) -> None:
        random, health, usage = self.random, self.health, self.usage
        [name] = random.choices(list(CHANNEL_SHARES), list(CHANNEL_SHARES.values()))
        fragments = 1
        while fragments < self._policy.most_fragments and random.random() < 2 / 3:
            fragments += 1
        self._bill(fragments, self._flow_seconds["stage_first"])
        usage.meter("staging", now, fragments, window_seconds=1.0)
        if health.dynamodb_errors >= 1 or health.functions_refused >= 1:
            usage.marks["chat.refused"] += fragments
            return
        self.sent += 1
        turn = Turn(now, random.random(), self._channels[name], fragments)
        self.open[turn] = None
        usage.add_flow("stage_first", now)
        usage.add_flow("stage_more", now, fragments - 1)
        due_at = self._plan_trigger(turn)
        if health.sqs_errors >= 1:
            return  # staged, but without a trigger: the sweeper sends one
        turn.window_until = now + self._compute_window_life()
        self.simulation.at(due_at, self._show, turn)

    def _plan_trigger(self, turn: Turn) -> float:
        """Return when the batch is complete. A trigger that comes too early is prolonged."""
        policy = self._policy
        at, waited = policy.window_seconds, 0.0
        last = next_at = 0.0
        left = turn.fragments
        while True:
            while left and next_at <= at:
                last, left = next_at, left - 1
                next_at += self.random.expovariate(1 / 3.0)
            wait = ceil(compute_typing_seconds(policy, waited, at - last))
            if wait <= 0:
                turn.last_at = turn.opened_at + last
                return turn.opened_at + at
            at, waited = at + wait, waited + wait
            self.usage.add_flow("turn_typing", self.simulation.now)
            self._count_event_source_calls()
            self._bill(1, self._flow_seconds["turn_typing"])

    def _compute_window_life(self) -> float:
        policy = self._policy
        return policy.max_wait_seconds + policy.lock_seconds + policy.grace_seconds

    # -- triggers and invocations

    def _show(self, turn: Turn, attempts: int = 0) -> None:
        turn.channel.visible.append((turn, attempts))
        self._invoke(turn.channel)

    def _show_again(self, turn: Turn, attempts: int) -> None:
        turn.channel.hidden -= 1
        self._show(turn, attempts)

    def _hide(self, turn: Turn, attempts: int, seconds: float) -> None:
        turn.channel.hidden += 1
        self.simulation.after(seconds, self._show_again, turn, attempts)

    def _invoke(self, channel: Channel) -> None:
        """Start as many invocations as the mapping and the account allow."""
        health = self.health
        while channel.visible and health.sqs_errors < 1 and health.functions_refused < 1:
            if channel.running >= channel.allowed or self._running >= ACCOUNT_CONCURRENCY:
                break
            channel.running += 1
            self._running += 1
            self._begin(*channel.visible.popleft())
        self.usage.note_level("lambda.concurrency", self._running)
        self.usage.note_level("lambda.mapping", channel.running)
        self.usage.note_level("sqs.in_flight", channel.running + channel.hidden)
        if channel.visible and not channel.ramps:
            channel.ramps = True
            self.simulation.after(1.0, self._ramp, channel)

    def _ramp(self, channel: Channel) -> None:
        channel.ramps = False
        if channel.visible:
            more = max(channel.allowed, channel.running) + _MORE_PER_SECOND
            channel.allowed = min(channel.max_concurrency, more)
            self._invoke(channel)

    def _begin(self, turn: Turn, attempts: int) -> None:
        self._count_event_source_calls()
        seconds = LATENCIES["lambda.start"]
        if self._running > self._warm:
            self._warm += 1
            seconds += LATENCIES["lambda.cold"]
        if turn.answered or turn.locked:
            self.usage.add_flow("turn_empty", self.simulation.now)
            outcome, more = "empty", self._flow_seconds["turn_empty"]
        elif self.random.random() < self.health.function_hangs:
            outcome, more = "killed", self.deployment.messaging_timeout_seconds - seconds
        else:
            outcome, more = self._answer(turn)
        turn.locked = turn.locked or outcome != "empty"
        seconds += more
        self.simulation.after(seconds, self._end, turn, attempts + 1, outcome, seconds)

    def _answer(self, turn: Turn) -> tuple[str, float]:
        """Return how the attempt ends, and after how many seconds."""
        health, random = self.health, self.random
        errors = health.dynamodb_errors
        if errors >= 1:
            return "store_fails", _STORE_FAILS_SECONDS
        flow = "turn_resent" if turn.written else "turn"
        seconds = self._flow_seconds[flow] * health.slowness + 9 * 0.1 * errors / (1 - errors)
        if not turn.written:
            writing = random.lognormvariate(0, 0.6) * LATENCIES["model"]
            if random.random() < health.model_hangs or writing > self._policy.writer_seconds:
                return "turn_writer_fails", seconds + self._policy.writer_seconds
            if random.random() < health.model_errors:
                return "turn_writer_fails", seconds + _FAIL_SECONDS
            seconds += writing
            turn.written = True
        if random.random() < health.twilio_errors:
            return "turn_sender_fails", seconds + _FAIL_SECONDS
        return flow, seconds + LATENCIES["twilio"] * health.slowness

    def _end(self, turn: Turn, attempts: int, outcome: str, seconds: float) -> None:
        turn.channel.running -= 1
        self._running -= 1
        self._bill(1, seconds)
        if outcome != "empty":
            turn.locked = False
            if renewals := int(seconds / (self._policy.lock_seconds / 3)):
                self.usage.add_flow("lock_renewal", self.simulation.now, renewals)
            self._settle(turn, attempts, outcome)
        if turn.channel.visible:
            self._invoke(turn.channel)

    def _settle(self, turn: Turn, attempts: int, outcome: str) -> None:
        now, queue, random = self.simulation.now, self._queue, self.random
        if outcome in ("turn", "turn_resent"):
            self.usage.add_flow(outcome, now)
            self.counted_twice += turn.answered
            self.counted += not turn.answered
            turn.answered = True
            self.open.pop(turn, None)
            self.waits.add(now - turn.last_at)
            if random.random() < self.health.sqs_errors:  # the delete failed
                self._hide(turn, attempts, queue.lease_seconds)
        elif outcome == "killed":
            # The last renewal was up to a third of the lease ago.
            self._hide(turn, attempts, queue.lease_seconds * random.uniform(2 / 3, 1))
        elif attempts >= queue.max_attempts:
            turn.window_until = 0.0
            self.usage.add_flow("turn_dead_letter", now)  # with the attempt
            self.usage.marks["chat.dead"] += 1
        else:
            turn.window_until = 0.0  # closed before the writer was asked
            if outcome != "store_fails":
                self.usage.add_flow(outcome, now)
            self._hide(turn, attempts, ceil(queue.backoff.delay(attempts, random)))

    # -- the sweeper

    def _sweep(self) -> None:
        now, health, counts = self.simulation.now, self.health, self.usage.counts
        every, timeout = (
            self.deployment.sweep_every_seconds,
            self.deployment.sweeping_timeout_seconds,
        )
        if self.is_producing or self.open:
            self.simulation.after(every, self._sweep)
        # Each mapping has five long polls at least.
        counts["sqs.ReceiveMessage"] += 5 * len(self._channels) * every / _POLL_SECONDS
        scanned = sum(turn.fragments for turn in self.open) * _ROW_BYTES
        counts["dynamodb.Scan"] += max(1, ceil(scanned / 2**20))
        counts["dynamodb.read"] += max(0.5, scanned / 4096 / 2)
        if health.dynamodb_errors >= 1 or health.sqs_errors >= 1 or health.functions_refused:
            self.usage.marks["chat.sweeps_cut"] += 1
            return
        seconds, wait = 0.5, self._policy.max_wait_seconds + self._policy.grace_seconds
        for turn in sorted(self.open, key=lambda turn: turn.key):
            if now - turn.opened_at <= wait:
                continue
            seconds += self._sweep_turn(turn, now, seconds) * health.slowness
            if seconds >= timeout:
                self.usage.marks["chat.sweeps_cut"] += 1
                break
        self._bill(1, min(seconds, timeout))

    def _sweep_turn(self, turn: Turn, now: float, after_seconds: float) -> float:
        """Inspect one conversation, and return how long it takes."""
        if turn.locked:
            return LATENCIES["dynamodb"]
        flow = "sweep_waits" if turn.window_until > now else "sweep_trigger"
        self.usage.add_flow(flow, now)
        if flow == "sweep_trigger":
            turn.window_until = now + self._compute_window_life()
            self.simulation.after(after_seconds, self._show, turn)
        return self._flow_seconds[flow]

    # -- what is counted

    def _count_event_source_calls(self) -> None:
        self.usage.counts["sqs.ReceiveMessage"] += 1
        self.usage.counts["sqs.DeleteMessageBatch"] += 1

    def _bill(self, invocations: int, seconds: float) -> None:
        gb_seconds = invocations * seconds * self.deployment.function_gb
        self.usage.counts["lambda.request"] += invocations
        self.usage.counts["lambda.gb_second"] += gb_seconds

    def _cool_down(self) -> None:
        self._warm = max(self._running, self._warm // 2)
        if self.is_producing or self.open:
            self.simulation.after(600.0, self._cool_down)

    # -- for the report

    def iter_waiting(self) -> Iterator[float]:
        """Yield when each turn was opened that should have been answered, and is not."""
        before = self.simulation.now - self._policy.max_wait_seconds
        return (
            turn.opened_at for turn in self.open if not turn.locked and turn.opened_at < before
        )

    def count_open(self) -> int:
        """Return how many turns are not answered."""
        return len(self.open)

    def recover(self) -> None:
        """Let the mappings poll again after an outage."""
        for channel in self._channels.values():
            self._invoke(channel)
