"""doctor for SQS: is the queue set up so that nothing is lost, stuck or done twice?

It reads settings and tries rights on a handle that is none. Nothing is received: that
would count as an attempt. Each check stands alone: one that cannot be made is a finding
too.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from holdfast.adapters.aws import clients
from holdfast.adapters.aws.errors import DENIED, NO_QUEUE, code_of, passes
from holdfast.adapters.aws.sqs import checks
from holdfast.adapters.aws.sqs.address import parse
from holdfast.adapters.aws.sqs.dead_letters import SQSDeadLetters
from holdfast.adapters.aws.sqs.queue_client import QueueClient
from holdfast.core.checks import CheckResult, fail, ok, warn
from holdfast.core.clock import SYSTEM_CLOCK, Clock
from holdfast.core.errors import HoldfastError

_NO_HANDLE = "holdfast-doctor"  # no receipt handle looks like this
_LAMBDA_SECONDS = 40.0  # a lease of this length: five seconds for each call

# Rights that can be tried without a trace: a handle that is none is refused only after
# the caller was let in, and a batch of nothing sends nothing.
_PROBES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "sqs:ChangeMessageVisibility": (
        "change_message_visibility",
        {"ReceiptHandle": _NO_HANDLE, "VisibilityTimeout": 0},
    ),
    "sqs:DeleteMessage": ("delete_message", {"ReceiptHandle": _NO_HANDLE}),
    "sqs:SendMessage": ("send_message_batch", {"Entries": []}),
}


class SQSDoctor:
    """Examines the queue as it is set up, for a worker with these settings."""

    def __init__(
        self,
        address: str,
        *,
        lease_seconds: float = 60.0,
        max_attempts: int = 5,
        dead_letters: str | None = None,
        client: Any = None,
        lambda_client: Any = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._service = QueueClient(parse(address), lease_seconds, client)
        self._lease_seconds, self._max_attempts = lease_seconds, max_attempts
        self._dead = SQSDeadLetters(self._service, dead_letters, clock)
        self._lambda = lambda_client

    def examine(self) -> Iterator[CheckResult]:
        """One finding after the other, as they are made.

        Raises ConfigError when no client can be made: without one nothing can be told.
        """
        self._service.patient  # noqa: B018  # makes the client
        try:
            yield from self._examine()
        finally:
            self._service.close()

    def _examine(self) -> Iterator[CheckResult]:
        try:
            found = self._service.attributes("All")
        except HoldfastError as error:
            yield fail("queue", *_split(error))
            return
        yield from checks.queue_check(self._service.address.name, found)
        yield from _made("permissions", self._rights)
        yield from checks.lease_check(found, self._lease_seconds)
        yield from checks.redrive_check(found, self._max_attempts)
        yield from _made("dead letters", self._dead_letters, found)
        yield from checks.retention_check(found, self._lease_seconds)
        yield from checks.delay_check(found)
        yield from checks.in_flight_check(found)
        yield from self._functions(found)

    # -- what this user may do

    def _rights(self) -> Iterator[CheckResult]:
        denied = [right for right, call in _PROBES.items() if self._is_denied(*call)]
        if denied:
            yield fail(
                "permissions",
                f"this user may not: {', '.join(denied)}",
                "allow them on the queue; a worker needs sqs:ReceiveMessage as well",
            )
        else:
            yield ok(
                "permissions",
                "this user may look, extend and delete; sending is not refused, and "
                "sqs:ReceiveMessage was not tried: that would count as an attempt",
            )

    def _is_denied(self, operation: str, arguments: Mapping[str, Any]) -> bool:
        try:
            self._service.patiently(operation, **arguments)
        except HoldfastError as error:
            if passes(error.__cause__ or error):
                raise
            return _code(error) in DENIED
        return False

    # -- where dead letters go

    def _dead_letters(self, source: checks.Attributes) -> Iterator[CheckResult]:
        try:
            place = self._dead.place()
            found = {} if place is None else place.attributes("All")
        except HoldfastError as error:
            yield _no_dead_letters(error)
            return
        if place is not None:
            yield from checks.dead_letters_check(place.address.name, found, source)

    # -- Lambda functions fed by the queue

    def _functions(self, found: checks.Attributes) -> Iterator[CheckResult]:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            mappings = list(self._mappings(found.get("QueueArn", "")))
        except (BotoCoreError, ClientError, HoldfastError) as error:
            word = code_of(error) or type(error).__name__
            yield ok("lambda", f"cannot be asked which functions the queue feeds ({word})")
            return
        if not mappings:
            yield ok("lambda", "the queue feeds no function here")
        for mapping in mappings:
            yield from checks.lambda_check(self._mapped(mapping), found)

    def _mappings(self, arn: str) -> Iterator[Mapping[str, Any]]:
        pages = self._functions_client().get_paginator("list_event_source_mappings")
        for page in pages.paginate(EventSourceArn=arn):
            yield from page.get("EventSourceMappings", ())

    def _functions_client(self) -> Any:
        if self._lambda is None:
            here = self._service.address
            self._lambda = clients.prompt(
                "lambda", _LAMBDA_SECONDS, region_name=here.region, endpoint_url=here.endpoint
            )
        return self._lambda

    def _mapped(self, mapping: Mapping[str, Any]) -> checks.LambdaMapping:
        arn = str(mapping.get("FunctionArn", ""))
        return checks.LambdaMapping(
            function=arn.partition(":function:")[2] or arn,
            enabled=mapping.get("State") not in ("Disabled", "Disabling"),
            timeout_seconds=self._timeout(arn),
            window_seconds=int(mapping.get("MaximumBatchingWindowInSeconds") or 0),
            reports_failures="ReportBatchItemFailures"
            in (mapping.get("FunctionResponseTypes") or ()),
        )

    def _timeout(self, arn: str) -> int | None:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            answer = self._functions_client().get_function_configuration(FunctionName=arn)
        except (BotoCoreError, ClientError):  # another account's, or no right to see it
            return None
        return int(answer["Timeout"])


def _made(
    name: str, check: Callable[..., Iterable[CheckResult]], *given: Any
) -> Iterator[CheckResult]:
    """The check's findings; that it cannot be made is one as well."""
    try:
        yield from check(*given)
    except HoldfastError as error:
        yield fail(name, f"cannot be checked: {error}", "try again when SQS answers")


def _no_dead_letters(error: HoldfastError) -> CheckResult:
    code = _code(error)
    if code in NO_QUEUE:
        return fail(
            "dead letters",
            f"the queue for them is not there ({error}): what fails for good stays and "
            "comes round again",
            "make it, or name another one in the redrive policy",
        )
    if code in DENIED:
        return warn(
            "dead letters",
            f"this user may not look at the queue for them ({code})",
            "allow sqs:GetQueueUrl, GetQueueAttributes and SendMessage there: workers send "
            "dead letters with their reasons",
        )
    return fail("dead letters", f"cannot be checked: {error}", "try again when SQS answers")


def _split(error: HoldfastError) -> tuple[str, str]:
    """What is wrong and the way out; `explained` writes both in one line."""
    code = _code(error)
    text = str(error)
    if code in NO_QUEUE:
        return text, "Holdfast makes no SQS queues: make it where your other settings are made"
    if code in DENIED:
        return text, "allow it for this user or role, on the queue's ARN"
    return text, "see that this machine reaches SQS with the region and credentials you mean"


def _code(error: HoldfastError) -> str:
    return code_of(error.__cause__ or error)
