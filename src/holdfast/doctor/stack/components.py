"""Find the components of a stack: what runs Holdfast, with which settings, and what it uses."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from holdfast.adapters.aws.dynamodb import tables as job_tables
from holdfast.adapters.aws.dynamodb.chat import tables as chat_tables
from holdfast.adapters.aws.sqs.address import parse_address
from holdfast.config.queue import SqsSettings
from holdfast.config.reading import read_settings
from holdfast.core.durations import parse_duration
from holdfast.core.urls import QUEUES, STORES, TARGETS, parse_url
from holdfast.doctor.stack.aws_reader import shorten_arn
from holdfast.doctor.stack.permissions import ComponentKind, Use

_FUNCTIONS = {
    "holdfast.lambdas.staging.handler": ComponentKind.STAGING,
    "holdfast.lambdas.messaging.handler": ComponentKind.MESSAGING,
    "holdfast.lambdas.sweeping.handler": ComponentKind.SWEEPING,
}
_COMMANDS = {
    ("work",): ComponentKind.WORK_SERVICE,
    ("export", "serve"): ComponentKind.EXPORT_SERVICE,
}
_SQS_URLS = ("sqs:", "https://")
_CHANNELS = ("WHATSAPP", "SMS", "EMAIL")
_INBOUND_QUEUE = "HOLDFAST_CHAT_INBOUND_QUEUE"
Uses = Mapping[Use, Sequence[str]]
"""The ARNs of what a component uses. A use without an ARN is known only by its kind."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a component runs, for the ARNs of what it uses."""

    partition: str
    region: str
    account: str

    @classmethod
    def from_arn(cls, arn: str) -> "Place":
        """Return the place of a resource with that ARN."""
        _, partition, _, region, account, *_ = arn.split(":", 5)
        return cls(partition, region, account)

    def make_arn(self, service: str, resource: str) -> str:
        """Return an ARN in this place. Names in S3 are without region and account."""
        if service == "s3":
            return f"arn:{self.partition}:s3:::{resource}"
        return f"arn:{self.partition}:{service}:{self.region}:{self.account}:{resource}"

    def find_queue(self, url: str) -> str:
        """Return the ARN of the queue with that URL of ours. Raises ConfigError."""
        return self.make_arn("sqs", parse_address(parse_url(url, QUEUES).path).name)


@dataclass(frozen=True, slots=True)
class Component:
    """A part that has a role.

    `part` names what is deployed, such as "function shop-work". `env` and `given` are its
    settings from the environment and from its command. `receives_from` has the queues that it
    receives from, by their ARN, with the options in their URL. `store` is the URL of its store
    of jobs or conversations, or None if it has none.
    """

    kind: ComponentKind
    part: str
    role: str
    uses: Uses
    env: Mapping[str, str] = field(default_factory=dict)
    given: Mapping[str, Any] = field(default_factory=dict)
    receives_from: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    store: str | None = None

    def read_queue_settings(self, arn: str) -> SqsSettings:
        """Return the settings with which it receives from a queue. Raises ConfigError."""
        return read_settings(SqsSettings, self.env, self.receives_from[arn], self.given)


@dataclass(frozen=True, slots=True)
class DeployedFunction:
    """A Lambda function, and its event source mappings in the stack."""

    configuration: Mapping[str, Any]
    mappings: Sequence[Mapping[str, Any]]

    @property
    def part(self) -> str:
        """Its name in results."""
        return f"function {self.configuration['FunctionName']}"

    @property
    def env(self) -> Mapping[str, str]:
        """Its environment."""
        variables: Mapping[str, str] = self.configuration.get("Environment", {}).get(
            "Variables", {}
        )
        return variables

    def find_component(self) -> Component | None:
        """Return what it is, or None if it does not handle messages of a queue for Holdfast."""
        queues = [
            mapping["EventSourceArn"]
            for mapping in self.mappings
            if ":sqs:" in mapping["EventSourceArn"]
        ]
        if kind := _FUNCTIONS.get(str(self.configuration.get("Handler"))):
            return self._make_chat_component(kind, queues)
        if not queues:
            return None
        return Component(
            ComponentKind.WORK_FUNCTION,
            self.part,
            self.configuration["Role"],
            {
                Use.QUEUE: queues,
                Use.DEAD_LETTERS: (),
                Use.LOG: (self._find_log(),),
                **_find_postponed(queues),
            },
            self.env,
            receives_from={arn: {} for arn in queues},
        )

    def _make_chat_component(self, kind: ComponentKind, queues: Sequence[str]) -> Component:
        place = Place.from_arn(self.configuration["FunctionArn"])
        # Twilio's webhook brings no emails. They come through the inbound queue.
        takes_emails = kind is not ComponentKind.STAGING or _INBOUND_QUEUE in self.env
        triggers = _find_triggers(place, self.env, _CHANNELS if takes_emails else _CHANNELS[:2])
        uses: dict[Use, Sequence[str]] = {
            Use.DEAD_LETTERS: (),
            Use.LOG: (self._find_log(),),
            Use.TRIGGERS: list(triggers),
        }
        return Component(
            kind,
            self.part,
            self.configuration["Role"],
            uses | _find_chat_uses(place, self.env),
            self.env,
            receives_from={arn: triggers.get(arn, {}) for arn in queues},
            store=self.env.get("HOLDFAST_CHAT_STORE", "a file, because none is set"),
        )

    def _find_log(self) -> str:
        group = self.configuration.get("LoggingConfig", {}).get("LogGroup")
        default = f"/aws/lambda/{self.configuration['FunctionName']}"
        return _make_log_arn(
            Place.from_arn(self.configuration["FunctionArn"]), group or default
        )


def _find_postponed(queues: Sequence[str]) -> Uses:
    """Return the queues to which a message that is newer than the code is sent again.

    In a FIFO queue it waits where it is.
    """
    standard = [arn for arn in queues if not arn.endswith(".fifo")]
    return {Use.POSTPONED: standard} if standard else {}


def _find_chat_uses(place: Place, env: Mapping[str, str]) -> dict[Use, Sequence[str]]:
    secrets: Sequence[str] = ()
    if name := env.get("HOLDFAST_CHAT_TWILIO_SECRET"):
        # AWS adds six characters to the name.
        secrets = (place.make_arn("secretsmanager", f"secret:{name}-abcdef"),)
    uses = {Use.SECRETS: secrets}
    store = env.get("HOLDFAST_CHAT_STORE", "")
    if not store.startswith("dynamodb:"):
        return uses
    names = chat_tables.tables_from_prefix(parse_url(store, STORES).path)
    return {
        **uses,
        Use.CONVERSATIONS: _make_table_arns(place, names.conversations),
        Use.STAGE: _make_table_arns(place, names.stage),
        Use.WINDOWS: _make_table_arns(place, names.windows),
        Use.HISTORY: _make_table_arns(place, names.messages),
        Use.PARKED: _make_table_arns(place, names.parked),
    }


def _find_triggers(
    place: Place, env: Mapping[str, str], channels: Sequence[str]
) -> dict[str, Mapping[str, str]]:
    """Return the queues of these channels, with the options in their URLs."""
    urls = (env.get(f"HOLDFAST_CHAT_{name}_QUEUE", "") for name in channels)
    return {
        place.find_queue(url): parse_url(url, QUEUES).options
        for url in urls
        if url.startswith(_SQS_URLS)
    }


@dataclass(frozen=True)
class DeployedService:
    """An ECS service with the task definition that it runs, and its container of Holdfast."""

    service: Mapping[str, Any]
    task: Mapping[str, Any]
    container: Mapping[str, Any]

    @property
    def part(self) -> str:
        """Its name in results."""
        return f"service {self.service['serviceName']}"

    @cached_property
    def words(self) -> tuple[str, ...]:
        """The words of its command, without `holdfast` itself."""
        words = tuple(self.container.get("command") or ())
        return words[1:] if words[:1] == ("holdfast",) else words

    @property
    def env(self) -> Mapping[str, str]:
        """The environment of its container, without secrets."""
        return {each["name"]: each["value"] for each in self.container.get("environment", ())}

    def find_option(self, name: str) -> str | None:
        """Return the value of an option of the command, as --name=VALUE or --name VALUE."""
        for word, after in zip(self.words, (*self.words[1:], None), strict=True):
            if word == f"--{name}":
                return after
            if word.startswith(f"--{name}="):
                return word.partition("=")[2]
        return None

    @property
    def kind(self) -> ComponentKind | None:
        """The command that it runs, or None if it is not one that serves a queue."""
        kinds = (kind for start, kind in _COMMANDS.items() if self.words[: len(start)] == start)
        return next(kinds, None)

    @property
    def queue_url(self) -> str | None:
        """The queue that it serves, or None if it is not an SQS queue."""
        candidates = (*self.words, self.env.get("HOLDFAST_QUEUE", ""))
        return next((each for each in candidates if each.startswith(_SQS_URLS)), None)

    @property
    def jobs_url(self) -> str:
        """The job store of `export serve`."""
        named = self.find_option("jobs") or self.env.get("HOLDFAST_JOBS")
        return named or "a file, because none is set"

    @property
    def drain_seconds(self) -> float:
        """The time that running work has to finish after SIGTERM."""
        drain = parse_duration(self.find_option("drain") or "30s")
        # `export serve` then counts its results and gives its jobs back.
        return drain + (10 if self.kind is ComponentKind.EXPORT_SERVICE else 0)

    def find_components(self, machines: Sequence[str]) -> list[Component]:
        """Return the component that works, and the one that starts its tasks."""
        return list(self._iter_components(machines))

    def _iter_components(self, machines: Sequence[str]) -> Iterator[Component]:
        place = Place.from_arn(self.task["taskDefinitionArn"])
        if self.kind is not None:
            role = self.task.get("taskRoleArn", "")
            used = self._find_uses(place, machines)
            options = parse_url(self.queue_url, QUEUES).options if self.queue_url else {}
            queues = dict.fromkeys(used[Use.QUEUE], options)
            given = self._find_queue_options()
            store = self.jobs_url if self.kind is ComponentKind.EXPORT_SERVICE else None
            yield Component(self.kind, self.part, role, used, self.env, given, queues, store)
        if role := self.task.get("executionRoleArn"):
            driver = self.container.get("logConfiguration", {}).get("options", {})
            log = _make_log_arn(place, driver.get("awslogs-group", "any"))
            uses: dict[Use, Sequence[str]] = {Use.LOG: (log,)}
            if ".dkr.ecr." in str(self.container.get("image")):
                uses |= {Use.REGISTRY: (), Use.REPOSITORY: ()}
            yield Component(ComponentKind.TASK_START, self.part, role, uses)

    def _find_queue_options(self) -> Mapping[str, Any]:
        lease, attempts = self.find_option("lease"), self.find_option("max-attempts")
        options = {"lease_seconds": lease and parse_duration(lease), "max_attempts": attempts}
        return {name: value for name, value in options.items() if value is not None}

    def _find_uses(self, place: Place, machines: Sequence[str]) -> Uses:
        queues = () if self.queue_url is None else (place.find_queue(self.queue_url),)
        cluster = shorten_arn(self.service["clusterArn"])
        uses: dict[Use, Sequence[str]] = {
            Use.QUEUE: queues,
            Use.DEAD_LETTERS: (),
            Use.TASK: (place.make_arn("ecs", f"task/{cluster}/any"),),
            **_find_postponed(queues),
        }
        if self.kind is ComponentKind.EXPORT_SERVICE:
            uses |= _find_job_uses(place, self.jobs_url)
            uses[Use.STATE_MACHINE] = machines
            uses |= _find_s3_uses(place, self.find_option("to"), self.find_option("manifests"))
        return uses


def _find_job_uses(place: Place, url: str) -> Uses:
    if not url.startswith("dynamodb:"):
        return {}
    prefix = parse_url(url, STORES).path
    jobs = f"table/{prefix}{job_tables.JOBS}"
    return {
        Use.JOBS: (place.make_arn("dynamodb", jobs),),
        Use.JOBS_INDEX: (
            place.make_arn("dynamodb", f"{jobs}/index/{job_tables.STATUS_INDEX}"),
        ),
        Use.JOB_TASKS: _make_table_arns(place, f"{prefix}{job_tables.TASKS}"),
    }


def _find_s3_uses(place: Place, to: str | None, manifests: str | None) -> Uses:
    uses: dict[Use, Sequence[str]] = {}
    if to and (target := parse_url(to, TARGETS)).scheme == "s3":
        uses[Use.FILES] = (place.make_arn("s3", f"{target.path.rstrip('/')}/any"),)
    if manifests and (lists := parse_url(manifests, TARGETS)).scheme == "s3":
        uses[Use.LISTS] = (place.make_arn("s3", f"{lists.path.rstrip('/')}/any"),)
        uses[Use.LISTS_BUCKET] = (place.make_arn("s3", lists.path.partition("/")[0]),)
    return uses


@dataclass(frozen=True, slots=True)
class DeployedMachine:
    """A state machine and its definition."""

    description: Mapping[str, Any]
    definition: Any

    @property
    def part(self) -> str:
        """Its name in results."""
        return f"state machine {shorten_arn(self.description['stateMachineArn'])}"

    def make_component(self, queue_urls: Sequence[str]) -> Component:
        """Return its component. `queue_urls` are those that its states send to."""
        place = Place.from_arn(self.description["stateMachineArn"])
        queues = [place.make_arn("sqs", shorten_arn(url)) for url in queue_urls]
        role = self.description["roleArn"]
        return Component(ComponentKind.STATE_MACHINE, self.part, role, {Use.QUEUE: queues})


def _make_table_arns(place: Place, name: str) -> tuple[str]:
    return (place.make_arn("dynamodb", f"table/{name}"),)


def _make_log_arn(place: Place, group: str) -> str:
    return place.make_arn("logs", f"log-group:{group}:log-stream:any")
