"""The failures of the week, and the state of each component while they last."""

from collections.abc import Callable
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
    component: str
    begins_at: float
    lasts_seconds: float
    changes: dict[str, float | bool] = field(default_factory=dict)
    kills: dict[str, float] = field(default_factory=dict)  # share of tasks of a service

    @property
    def ends_at(self) -> float:
        """Return when it is over."""
        return self.begins_at + self.lasts_seconds


def list_faults(week: float = 7 * DAY) -> list[Fault]:
    """Return the failures of the week, each at a busy time of the day and far from the others.

    In a shorter run the distances shrink, the failures keep their lengths.
    """
    at: Callable[[float], float] = lambda hours: hours * HOUR * week / (7 * DAY)  # noqa: E731
    return [
        Fault("half of all workers killed", "Fargate, queue", at(9), 1, kills={"work": 0.5}),
        Fault("all workers killed", "Fargate, queue", at(13), 1, kills={"work": 1.0}),
        Fault(
            "half of the export tasks killed", "Fargate, exports", at(17), 1,
            kills={"export": 0.5},
        ),
        Fault(
            "no Fargate task starts for 15 min, and a third of them is killed",
            "Fargate", at(33), 900, {"tasks_start": False},
            kills={"work": 0.33, "export": 0.33},
        ),
        Fault(
            "a fifth of the invocations hangs until its timeout, 10 min",
            "Lambda, messaging", at(37), 600, {"function_hangs": 0.2},
        ),
        Fault(
            "Lambda starts nothing for 5 min", "Lambda", at(41), 300, {"functions_refused": 1.0}
        ),
        Fault("SQS does not respond for 5 min", "SQS", at(57), 300, {"sqs_errors": 1.0}),
        Fault(
            "DynamoDB throttles half of all calls for 15 min",
            "DynamoDB", at(61), 900, {"dynamodb_errors": 0.5},
        ),
        Fault(
            "DynamoDB does not respond for 5 min", "DynamoDB", at(65), 300,
            {"dynamodb_errors": 1.0},
        ),
        Fault(
            "Step Functions accepts a fifth of its quota for 10 min",
            "Step Functions", at(81), 600, {"states_capacity": 0.2},
        ),
        Fault(
            "Step Functions does not respond for 2 min", "Step Functions", at(85), 120,
            {"states_errors": 1.0},
        ),
        Fault(
            "the model's API is down for 30 min", "model", at(105), 1800, {"model_errors": 1.0}
        ),
        Fault(
            "the model's API hangs for 10 min", "model", at(111), 600, {"model_hangs": 1.0}
        ),
        Fault("Twilio is down for 20 min", "Twilio", at(129), 1200, {"twilio_errors": 1.0}),
        Fault(
            "a deployment fails every message for 1 h, then the dead letters are redriven",
            "deployment, queue", at(133), 3600, {"handler_errors": 1.0},
        ),
        Fault(
            "brown-out of the region, 15 min: 30 % of all calls fail, the others are slow",
            "region", at(155), 900,
            {
                "sqs_errors": 0.3, "dynamodb_errors": 0.3, "states_errors": 0.3,
                "function_hangs": 0.05, "slowness": 5.0,
            },
        ),
    ]  # fmt: skip
