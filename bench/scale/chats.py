"""The model of the conversations: staging, triggers, the messaging function and the sweeper.

Every turn and every trigger is simulated. Messages of a customer are counted with their turn,
and conversations do not share a customer, so that no two turns meet at one lock.

    fragments ─▶ staged ─▶ trigger after the window ─▶ invocation ─┬─ answered: counted once
                                    ▲   ▲                         ├─ fails ─▶ retried after the
                                    │   └─────────────────────────┘           backoff
                                    └── sweeper ◀─ no trigger left ◀─ last attempt: dead letter
"""

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from itertools import accumulate
from math import ceil

from bench.scale.deployment import Deployment
from bench.scale.engine import Histogram, Meter, Simulation, Usage
from bench.scale.faults import Health
from bench.scale.latencies import LATENCIES
from bench.scale.work import swing
from holdfast.chat.batching import compute_typing_seconds

CHANNEL_SHARES = {"whatsapp": 0.7, "sms": 0.2, "email": 0.1}
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
        "triggers", "window_until", "written",
    )  # fmt: skip

    def __init__(
        self, opened_at: float, key: float, channel: "Channel", fragments: int
    ) -> None:
        self.opened_at = self.last_at = opened_at
        self.key, self.channel, self.fragments = key, channel, fragments
        self.answered = self.written = self.locked = False
        self.triggers = 0  # on their way
        self.window_until = 0.0


class Trigger:
    """A message of a channel's queue."""

    __slots__ = ("receives", "turn")

    def __init__(self, turn: Turn) -> None:
        self.turn, self.receives = turn, 0


class Channel:
    """A queue of triggers with its event source mapping."""

    def __init__(self, name: str, share_until: float, max_concurrency: int) -> None:
        self.name, self.share_until, self.max_concurrency = name, share_until, max_concurrency
        self.visible: deque[Trigger] = deque()
        self.running = self.hidden = 0
        self.allowed = float(min(_FIRST_CONCURRENCY, max_concurrency))
        self.ramps = False
        self.max_running = self.max_in_flight = 0


class ChatModel:
    """All conversations."""

    def __init__(
        self,
        simulation: Simulation,
        deployment: Deployment,
        health: Health,
        usage: Usage,
        *,
        flows: Mapping[str, Mapping[str, float]],
        call_seconds: Mapping[str, float],
        per_second: float,
    ) -> None:
        self._simulation, self._health, self._usage = simulation, health, usage
        self._random, self._policy = simulation.random, deployment.chat
        self._functions, self._queue = deployment.functions, deployment.queue
        self._per_second = per_second
        self._receives = usage.calls["sqs.ReceiveMessage"]
        self._deletes = usage.calls["sqs.DeleteMessageBatch"]
        self._call_seconds = call_seconds
        self._flow_seconds = {
            name: sum(
                number * call_seconds[call.partition(".")[0]]
                for call, number in flow.items()
                if call.partition(".")[2][:1].isupper()
            )
            for name, flow in flows.items()
        }
        self._channels = [
            Channel(name, share_until, deployment.functions.max_concurrency[name])
            for name, share_until in zip(
                CHANNEL_SHARES, accumulate(CHANNEL_SHARES.values()), strict=True
            )
        ]
        self._channels[-1].share_until = 1.0
        self.staging = Meter()
        self._running = self.max_running = 0
        self._warm = 0
        self._is_producing = True
        self.open: dict[Turn, None] = {}
        self.accepted = self.answered = self.answered_twice = 0
        self.refused = 0  # fragments whose webhook got 503
        self.dead_lettered = self.sweeps_cut = self.second_triggers = 0
        self.replies = Histogram()
        self.invocations: Counter[str] = Counter()
        self.billed_seconds: Counter[str] = Counter()

    def start(self) -> None:
        """Let customers write, and the sweeper run."""
        self._simulation.after(self._random.expovariate(self._per_second), self._open)
        self._simulation.after(self._functions.sweep_every_seconds, self._sweep)
        self._simulation.after(600.0, self._cool_down)

    def stop_producing(self) -> None:
        """Let no customer write any more."""
        self._is_producing = False

    # -- staging

    def _open(self) -> None:
        if not self._is_producing:
            return
        now, random = self._simulation.now, self._random
        self._stage(now)
        rate = self._per_second * swing(now)
        self._simulation.at(now + random.expovariate(rate), self._open)

    def _stage(self, now: float) -> None:
        random, health = self._random, self._health
        share = random.random()
        channel = next(other for other in self._channels if share < other.share_until)
        fragments = 1
        while fragments < self._policy.most_fragments and random.random() < 2 / 3:
            fragments += 1
        self._bill("staging", fragments, self._flow_seconds["stage_first"])
        self.staging.add(now, fragments)
        if health.dynamodb_errors >= 1 or health.functions_refused >= 1:
            self.refused += fragments
            return
        self.accepted += 1
        turn = Turn(now, random.random(), channel, fragments)
        self.open[turn] = None
        self._usage.add_flow("stage_first", now)
        if fragments > 1:
            self._usage.add_flow("stage_more", now, fragments - 1)
        due_at = self._plan_trigger(turn)
        if health.sqs_errors >= 1:
            return  # staged, but without a trigger: the sweeper sends one
        turn.window_until = now + self._compute_window_life()
        turn.triggers += 1
        self._simulation.at(due_at, self._show, Trigger(turn))

    def _plan_trigger(self, turn: Turn) -> float:
        """Return when the batch is complete. A trigger that comes too early is prolonged."""
        random, policy = self._random, self._policy
        at, waited = policy.window_seconds, 0.0
        last = next_at = 0.0
        left = turn.fragments
        while True:
            while left and next_at <= at:
                last, left = next_at, left - 1
                next_at += random.expovariate(1 / 3.0)
            wait = compute_typing_seconds(policy, waited, at - last)
            if wait <= 0:
                turn.last_at = turn.opened_at + last
                return turn.opened_at + at
            wait = ceil(wait)
            at, waited = at + wait, waited + wait
            self._usage.add_flow("turn_typing", self._simulation.now)
            self._count_event_source_calls()
            self._bill("messaging", 1, self._flow_seconds["turn_typing"])

    def _compute_window_life(self) -> float:
        policy = self._policy
        return policy.max_wait_seconds + policy.lock_seconds + policy.grace_seconds

    # -- triggers and invocations

    def _show(self, trigger: Trigger) -> None:
        trigger.turn.channel.visible.append(trigger)
        self._invoke(trigger.turn.channel)

    def _show_again(self, trigger: Trigger) -> None:
        trigger.turn.channel.hidden -= 1
        self._show(trigger)

    def _hide(self, trigger: Trigger, seconds: float) -> None:
        trigger.turn.channel.hidden += 1
        self._simulation.after(seconds, self._show_again, trigger)

    def _invoke(self, channel: Channel) -> None:
        """Start as many invocations as the mapping and the account allow."""
        health = self._health
        while channel.visible and not (health.sqs_errors >= 1 or health.functions_refused >= 1):
            if channel.running >= channel.allowed or self._running >= ACCOUNT_CONCURRENCY:
                break
            trigger = channel.visible.popleft()
            channel.running += 1
            self._running += 1
            self._begin(trigger)
        if self._running > self.max_running:
            self.max_running = self._running
        if channel.running > channel.max_running:
            channel.max_running = channel.running
        if (in_flight := channel.running + channel.hidden) > channel.max_in_flight:
            channel.max_in_flight = in_flight
        if channel.visible:
            backlog = sum(len(other.visible) for other in self._channels)
            self._usage.note_level("chat.backlog", backlog)
            if not channel.ramps:
                channel.ramps = True
                self._simulation.after(1.0, self._ramp, channel)

    def _ramp(self, channel: Channel) -> None:
        channel.ramps = False
        if channel.visible:
            limit = channel.max_concurrency
            channel.allowed = min(
                limit, max(channel.allowed, channel.running) + _MORE_PER_SECOND
            )
            self._invoke(channel)

    def _begin(self, trigger: Trigger) -> None:
        turn, random, health = trigger.turn, self._random, self._health
        trigger.receives += 1
        self._count_event_source_calls()
        seconds = LATENCIES["lambda.start"].seconds
        if self._running > self._warm:
            self._warm += 1
            seconds += LATENCIES["lambda.cold"].seconds
        if turn.answered or turn.locked:
            self._usage.add_flow("turn_empty", self._simulation.now)
            seconds += self._flow_seconds["turn_empty"]
            self._simulation.after(seconds, self._end, trigger, "empty", seconds)
            return
        turn.locked = True
        if random.random() < health.function_hangs:
            seconds = self._functions.messaging_timeout_seconds
            self._simulation.after(seconds, self._end, trigger, "killed", seconds)
            return
        outcome, more = self._answer(turn)
        seconds += more
        self._simulation.after(seconds, self._end, trigger, outcome, seconds)

    def _answer(self, turn: Turn) -> tuple[str, float]:
        """Return how the attempt ends, and after how many seconds."""
        health, random = self._health, self._random
        errors = health.dynamodb_errors
        if errors >= 1:
            return "store_fails", _STORE_FAILS_SECONDS
        flow = "turn_resent" if turn.written else "turn"
        seconds = self._flow_seconds[flow] * health.slowness
        seconds += 9 * 0.1 * errors / (1 - errors) if errors else 0.0
        if not turn.written:
            if random.random() < health.model_hangs:
                return "turn_writer_fails", seconds + self._policy.writer_seconds
            if random.random() < health.model_errors:
                return "turn_writer_fails", seconds + _FAIL_SECONDS
            writing = random.lognormvariate(0, 0.6) * LATENCIES["model"].seconds
            if writing > self._policy.writer_seconds:
                return "turn_writer_fails", seconds + self._policy.writer_seconds
            seconds += writing
            turn.written = True
        if random.random() < health.twilio_errors:
            return "turn_sender_fails", seconds + _FAIL_SECONDS
        return flow, seconds + LATENCIES["twilio"].seconds * health.slowness

    def _end(self, trigger: Trigger, outcome: str, seconds: float) -> None:
        turn = trigger.turn
        channel = turn.channel
        channel.running -= 1
        self._running -= 1
        self._bill("messaging", 1, seconds)
        if outcome == "empty":
            turn.triggers -= 1
        else:
            turn.locked = False
            self._count_renewals(seconds)
            self._settle(trigger, outcome)
        if channel.visible:
            self._invoke(channel)

    def _settle(self, trigger: Trigger, outcome: str) -> None:
        turn, now = trigger.turn, self._simulation.now
        if outcome in ("turn", "turn_resent"):
            self._usage.add_flow(outcome, now)
            self._count(turn)
            if self._random.random() < self._health.sqs_errors:
                self._hide(trigger, self._queue.lease_seconds)  # the delete failed
            else:
                turn.triggers -= 1
            return
        if outcome == "killed":
            # The last renewal was up to a third of the lease ago.
            seconds = self._queue.lease_seconds * self._random.uniform(2 / 3, 1)
            self._hide(trigger, seconds)
            return
        turn.window_until = 0.0  # closed before the writer was asked
        if trigger.receives >= self._queue.max_attempts:
            self._usage.add_flow("turn_dead_letter", now)  # with the attempt
            self.dead_lettered += 1
            turn.triggers -= 1
            return
        if outcome != "store_fails":
            self._usage.add_flow(outcome, now)
        self._hide(trigger, ceil(self._queue.backoff.delay(trigger.receives, self._random)))

    def _count(self, turn: Turn) -> None:
        self.answered_twice += turn.answered
        self.answered += not turn.answered
        turn.answered = True
        self.open.pop(turn, None)
        self.replies.add(self._simulation.now - turn.last_at)

    # -- the sweeper

    def _sweep(self) -> None:
        now, functions = self._simulation.now, self._functions
        if self._is_producing or self.open:
            self._simulation.after(functions.sweep_every_seconds, self._sweep)
        # Each mapping has five long polls at least.
        idle = 5 * len(self._channels) * functions.sweep_every_seconds / _POLL_SECONDS
        self._usage.calls["sqs.ReceiveMessage"].add(now, idle)
        rows = sum(turn.fragments for turn in self.open)
        self._usage.calls["dynamodb.Scan"].add(now, max(1, ceil(rows * _ROW_BYTES / 2**20)))
        self._usage.calls["dynamodb.read"].add(now, max(0.5, rows * _ROW_BYTES / 4096 / 2))
        health = self._health
        if health.dynamodb_errors >= 1 or health.sqs_errors >= 1 or health.functions_refused:
            self.sweeps_cut += 1
            return
        seconds = 0.5
        for turn in sorted(self.open, key=lambda turn: turn.key):
            age = now - turn.opened_at
            if age <= self._policy.max_wait_seconds + self._policy.grace_seconds:
                continue
            seconds += self._sweep_turn(turn, now, seconds)
            if seconds >= functions.sweeping_timeout_seconds:
                self.sweeps_cut += 1
                break
        self._bill("sweeping", 1, min(seconds, functions.sweeping_timeout_seconds))

    def _sweep_turn(self, turn: Turn, now: float, after_seconds: float) -> float:
        """Inspect one conversation, and return how long it takes."""
        slowness = self._health.slowness
        if turn.locked:
            return self._call_seconds["dynamodb"] * slowness
        flow = "sweep_waits" if turn.window_until > now else "sweep_trigger"
        if flow == "sweep_trigger":
            turn.window_until = now + self._compute_window_life()
            self.second_triggers += turn.triggers > 0
            turn.triggers += 1
        self._simulation.after(after_seconds, self._sweep_one, turn, flow)
        return self._flow_seconds[flow] * slowness

    def _sweep_one(self, turn: Turn, flow: str) -> None:
        self._usage.add_flow(flow, self._simulation.now)
        if flow == "sweep_trigger":
            self._show(Trigger(turn))

    # -- what is counted

    def _count_event_source_calls(self) -> None:
        self._receives.total += 1
        self._deletes.total += 1

    def _count_renewals(self, seconds: float) -> None:
        if renewals := int(seconds / (self._policy.lock_seconds / 3)):
            self._usage.add_flow("lock_renewal", self._simulation.now, renewals)

    def _bill(self, function: str, invocations: int, seconds: float) -> None:
        self.invocations[function] += invocations
        self.billed_seconds[function] += invocations * seconds

    def _cool_down(self) -> None:
        self._warm = max(self._running, self._warm // 2)
        if self._is_producing or self.open:
            self._simulation.after(600.0, self._cool_down)

    # -- for the report

    @property
    def channels(self) -> list[Channel]:
        """The queues of triggers."""
        return self._channels

    def iter_waiting(self) -> Iterator[float]:
        """Yield when each turn was opened that should have been answered, and is not."""
        before = self._simulation.now - self._policy.max_wait_seconds
        return (
            turn.opened_at for turn in self.open if not turn.locked and turn.opened_at < before
        )

    def revive(self) -> None:
        """Let the mappings poll again after an outage."""
        for channel in self._channels:
            self._invoke(channel)
