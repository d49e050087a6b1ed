"""Lambda functions: the chat's, and those that handle the messages of a queue."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from infra.check.arns import find_queue, make_arn, make_log_arn
from infra.check.deployment import (
    NO_STORE,
    Component,
    Deployment,
    Part,
    Uses,
    find_queue_uses,
)
from infra.check.permissions import ComponentKind, Use

from holdfast.chat.dynamodb.tables import tables_from_prefix
from holdfast.doctor.checks import CheckResult
from holdfast.doctor.sqs_queue import check_mapping
from holdfast.urls import STORES, parse_url

_CHAT = {
    "holdfast.lambdas.staging.handler": ComponentKind.STAGING,
    "holdfast.lambdas.messaging.handler": ComponentKind.MESSAGING,
    "holdfast.lambdas.sweeping.handler": ComponentKind.SWEEPING,
}
_CHANNELS = ("WHATSAPP", "SMS", "EMAIL")
_INBOUND_QUEUE = "HOLDFAST_CHAT_INBOUND_QUEUE"


def read_functions(deployment: Deployment) -> None:
    """Add the functions of the stack, and those that its event source mappings invoke."""
    reader, ids = deployment.reader, deployment.ids
    mappings: dict[str, list[Any]] = {name: [] for name in ids["AWS::Lambda::Function"]}
    for uuid in ids["AWS::Lambda::EventSourceMapping"]:
        part = f"event source mapping {uuid}"
        with deployment.note_problem(part):
            mapping = reader.read("lambda", "get_event_source_mapping", part, UUID=uuid)
            name = mapping["FunctionArn"].partition(":function:")[2].partition(":")[0]
            mappings.setdefault(name, []).append(mapping)
    for name, each in mappings.items():
        with deployment.note_problem(f"function {name}"):
            configuration = reader.read(
                "lambda", "get_function_configuration", name, FunctionName=name
            )
            if function := parse_function(configuration, each):
                deployment.parts.append(function)


def parse_function(
    configuration: Mapping[str, Any], mappings: Sequence[Mapping[str, Any]]
) -> Part | None:
    """Return what a function is, or None if it does not handle messages for Holdfast.

    Raises ConfigError.
    """
    name, arn = configuration["FunctionName"], configuration["FunctionArn"]
    sources = [mapping["EventSourceArn"] for mapping in mappings]
    queues = [source for source in sources if ":sqs:" in source]
    kind = _CHAT.get(str(configuration.get("Handler")))
    if kind is None and not queues:
        return None
    env = configuration.get("Environment", {}).get("Variables", {})
    triggers: Mapping[str, Mapping[str, str]] = {}
    uses, store = find_queue_uses(queues), None
    if kind is not None:
        triggers = _find_triggers(kind, arn, env)
        uses = {Use.TRIGGERS: list(triggers), **_find_chat_uses(arn, env)}
        store = env.get("HOLDFAST_CHAT_STORE") or NO_STORE
    group = configuration.get("LoggingConfig", {}).get("LogGroup") or f"/aws/lambda/{name}"
    component = Component(
        kind or ComponentKind.WORK_FUNCTION,
        configuration["Role"],
        {Use.LOG: [make_log_arn(arn, group)], **uses},
    )
    return Part(
        f"function {name}",
        [component],
        [("event source", partial(_check_mappings, configuration, mappings))],
        env,
        receives_from={queue: triggers.get(queue, {}) for queue in queues},
        store=store,
    )


def _find_triggers(
    kind: ComponentKind, arn: str, env: Mapping[str, str]
) -> dict[str, Mapping[str, str]]:
    """Return the queues of the channels that it takes, with the options in their URLs."""
    # Twilio's webhook brings no emails. They come through the inbound queue.
    takes_emails = kind is not ComponentKind.STAGING or _INBOUND_QUEUE in env
    triggers: dict[str, Mapping[str, str]] = {}
    for channel in _CHANNELS if takes_emails else _CHANNELS[:2]:
        triggers |= find_queue(arn, env.get(f"HOLDFAST_CHAT_{channel}_QUEUE", ""))
    return triggers


def _find_chat_uses(arn: str, env: Mapping[str, str]) -> Uses:
    secrets: Sequence[str] = ()
    if name := env.get("HOLDFAST_CHAT_TWILIO_SECRET"):
        # AWS adds six characters to the name.
        secrets = [make_arn(arn, "secretsmanager", f"secret:{name}-abcdef")]
    store = env.get("HOLDFAST_CHAT_STORE", "")
    if not store.startswith("dynamodb:"):
        return {Use.SECRETS: secrets}
    names = tables_from_prefix(parse_url(store, STORES).path)
    tables = {
        Use.CONVERSATIONS: names.conversations,
        Use.STAGE: names.stage,
        Use.WINDOWS: names.windows,
        Use.HISTORY: names.messages,
        Use.PARKED: names.parked,
    }
    arns = {use: [make_arn(arn, "dynamodb", f"table/{table}")] for use, table in tables.items()}
    return {Use.SECRETS: secrets, **arns}


def _check_mappings(
    configuration: Mapping[str, Any],
    mappings: Sequence[Mapping[str, Any]],
    deployment: Deployment,
) -> Iterator[CheckResult]:
    for mapping in mappings:
        queue = deployment.queues.get(mapping["EventSourceArn"])
        if queue is not None:
            visibility = queue.number("VisibilityTimeout", 30)
            yield from check_mapping(mapping, int(configuration["Timeout"]), visibility)
