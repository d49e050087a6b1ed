"""What a stack has deployed that concerns Holdfast."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from infra.check.aws_reader import AwsReader
from infra.check.permissions import ComponentKind, Use

from holdfast.doctor.checks import CheckFailed, CheckResult, fail
from holdfast.doctor.sqs_queue import QueueConfiguration
from holdfast.errors import ConfigError
from holdfast.queues.settings import SqsSettings
from holdfast.settings import read_settings

Uses = Mapping[Use, Sequence[str]]
"""The ARNs of what a component uses. A use without an ARN is known only by its kind."""

NO_STORE = "a file, because none is set"


@dataclass(frozen=True, slots=True)
class DeployedQueue(QueueConfiguration):
    """A queue and its attributes."""

    url: str

    @property
    def arn(self) -> str:
        """The queue's ARN."""
        return self.values["QueueArn"]

    @property
    def dead_letters_arn(self) -> str | None:
        """The ARN of its queue for dead letters, if it has one."""
        policy = json.loads(self.values.get("RedrivePolicy") or "{}")
        target = policy.get("deadLetterTargetArn")
        return None if target is None else str(target)


@dataclass(frozen=True, slots=True)
class Component:
    """What runs with one role: its kind, the ARN of the role, and what it uses."""

    kind: ComponentKind
    role: str
    uses: Uses


@dataclass(frozen=True, slots=True)
class Part:
    """A function, a service or a state machine.

    `name` is its name in results, such as "function shop-work". A service has a second
    component, which starts its tasks. `checks` are those that only this kind of part has.
    `env` and `given` are its settings from the environment and from its command.
    `receives_from` has the queues that it receives from, by their ARN, with the options in
    their URL. `store` is the URL of its store of jobs or conversations, or None if it has none.
    """

    name: str
    components: Sequence[Component]
    checks: "Sequence[tuple[str, Callable[[Deployment], Iterator[CheckResult]]]]"
    env: Mapping[str, str] = field(default_factory=dict)
    given: Mapping[str, Any] = field(default_factory=dict)
    receives_from: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    store: str | None = None

    @property
    def is_export_service(self) -> bool:
        """Whether it runs `holdfast export serve`."""
        return self.components[0].kind is ComponentKind.EXPORT_SERVICE


@dataclass
class Deployment:
    """What a stack has deployed.

    `ids` has the physical ids of its resources by type, and `queues` has the queues by ARN.
    `problems` has a result for each part that cannot be read.
    """

    reader: AwsReader
    ids: Mapping[str, Sequence[str]]
    queues: dict[str, DeployedQueue] = field(default_factory=dict)
    parts: list[Part] = field(default_factory=list)
    problems: list[CheckResult] = field(default_factory=list)

    def find_queue_settings(self, arn: str) -> SqsSettings:
        """Return the settings of the part that receives from a queue, or the defaults.

        Raises ConfigError.
        """
        for part in self.parts:
            if arn in part.receives_from:
                options = part.receives_from[arn]
                return read_settings(SqsSettings, part.env, options, part.given)
        return SqsSettings()

    @contextmanager
    def note_problem(self, part: str) -> Iterator[None]:
        """Turn an error inside into a problem of a part. The others are still read."""
        try:
            yield
        except CheckFailed as error:
            self.problems.append(replace(error.result, check=part))
        except ConfigError as error:
            result = fail(str(error), "correct this setting, and deploy the stack again")
            self.problems.append(replace(result, check=part))


def find_queue_uses(queues: Sequence[str]) -> Uses:
    """Return how a consumer uses its queues, by their ARNs.

    A message that is newer than the code is sent again. In a FIFO queue it waits where it is.
    """
    standard = [arn for arn in queues if not arn.endswith(".fifo")]
    return {Use.QUEUE: queues, **({Use.POSTPONED: standard} if standard else {})}
