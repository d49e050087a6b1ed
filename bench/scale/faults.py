"""The failures of the week, and the state of each component while they last."""

from dataclasses import dataclass, field

HOUR = 3600.0
DAY = 24 * HOUR


@dataclass(slots=True)
class Health:
    """The state of everything that can fail. Failures change it, and the models read it."""

    sqs_errors: float = 0.0  # the share of calls that fail
    dynamodb_errors: float = 0.0
    states_capacity: float = 1.0  # the share of the quota that Step Functions accepts
    states_errors: float = 0.0
    model_errors: float = 0.0
    model_hangs: float = 0.0  # the share of calls that take the whole timeout, then fail
    twilio_errors: float = 0.0
    function_hangs: float = 0.0  # the share of invocations that hang until the timeout
    functions_refused: float = 0.0  # the share of invocations that Lambda does not start
    handler_errors: float = 0.001  # of the user's own handler, in normal operation
    slowness: float = 1.0  # factor on every call
    tasks_start: bool = True  # whether Fargate starts tasks


@dataclass(frozen=True, slots=True)
class Fault:
    """One failure of a component: when it begins, how long it lasts, and what it changes."""

    name: str
    begins_at: float
    lasts_seconds: float
    changes: dict[str, float | bool] = field(default_factory=dict)
    kills: dict[str, float] = field(default_factory=dict)  # share of tasks of a service

    @property
    def ends_at(self) -> float:
        """Return when it is over."""
        return self.begins_at + self.lasts_seconds


MODEL_OUTAGE = "the model's API is down for 30 min"
_KILLS = [
    (9, "half of all workers killed", {"work": 0.5}),
    (13, "all workers killed", {"work": 1.0}),
    (17, "half of the export tasks killed", {"export": 0.5}),
]
_BROWN_OUT: dict[str, float | bool] = {
    "sqs_errors": 0.3, "dynamodb_errors": 0.3, "states_errors": 0.3, "function_hangs": 0.05,
    "slowness": 5.0,
}  # fmt: skip
# The hour of the week, the minutes, the name, and what changes. The hours are busy ones.
_FAILURES: list[tuple[float, float, str, dict[str, float | bool]]] = [
    (37, 10, "a fifth of the invocations hangs until its timeout, 10 min",
     {"function_hangs": 0.2}),
    (41, 5, "Lambda starts nothing for 5 min", {"functions_refused": 1.0}),
    (57, 5, "SQS does not respond for 5 min", {"sqs_errors": 1.0}),
    (61, 15, "DynamoDB throttles half of all calls for 15 min", {"dynamodb_errors": 0.5}),
    (65, 5, "DynamoDB does not respond for 5 min", {"dynamodb_errors": 1.0}),
    (81, 10, "Step Functions accepts a fifth of its quota for 10 min",
     {"states_capacity": 0.2}),
    (85, 2, "Step Functions does not respond for 2 min", {"states_errors": 1.0}),
    (105, 30, MODEL_OUTAGE, {"model_errors": 1.0}),
    (111, 10, "the model's API hangs for 10 min", {"model_hangs": 1.0}),
    (129, 20, "Twilio is down for 20 min", {"twilio_errors": 1.0}),
    (133, 60, "a deployment fails every message for 1 h, then the dead letters are redriven",
     {"handler_errors": 1.0}),
    (155, 15, "brown-out of the region, 15 min: 30 % of all calls fail, the others are slow",
     _BROWN_OUT),
]  # fmt: skip


def list_faults(week: float = 7 * DAY) -> list[Fault]:
    """Return the failures of the week. In a shorter run only their distances shrink."""
    scale = HOUR * week / (7 * DAY)
    no_start = Fault(
        "no Fargate task starts for 15 min, and a third of them is killed",
        33 * scale,
        900,
        {"tasks_start": False},
        {"work": 0.33, "export": 0.33},
    )
    return [
        *(Fault(name, hour * scale, 1, kills=kills) for hour, name, kills in _KILLS),
        no_start,
        *(
            Fault(name, hour * scale, 60 * minutes, changes)
            for hour, minutes, name, changes in _FAILURES
        ),
    ]
