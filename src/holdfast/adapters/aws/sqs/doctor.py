"""Check an SQS queue for `doctor`: do its settings prevent lost, stuck and repeated work?

The checks read settings, and try permissions with an invalid receipt handle. They receive
no message, because that would count as an attempt. The checks are independent; if one
cannot be made, that is reported as well.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from holdfast.adapters.aws import clients
from holdfast.adapters.aws.errors import DENIED, NO_QUEUE, get_error_code, is_transient
from holdfast.adapters.aws.sqs import checks
from holdfast.adapters.aws.sqs.address import parse_address
from holdfast.adapters.aws.sqs.dead_letters import SQSDeadLetters
from holdfast.adapters.aws.sqs.queue_client import QueueClient
from holdfast.core.checks import CheckResult, fail, ok, warn
from holdfast.core.clock import SYSTEM_CLOCK, Clock
from holdfast.core.errors import HoldfastError

_FAKE_HANDLE = "holdfast-doctor"  # real receipt handles never look like this
_LAMBDA_LEASE_SECONDS = 40.0  # a lease of this length gives each call five seconds

# Permissions that can be tried without an effect: SQS checks the permission before it
# refuses an invalid handle, and an empty batch sends nothing.
_PROBES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "sqs:ChangeMessageVisibility": (
        "change_message_visibility",
        {"ReceiptHandle": _FAKE_HANDLE, "VisibilityTimeout": 0},
    ),
    "sqs:DeleteMessage": ("delete_message", {"ReceiptHandle": _FAKE_HANDLE}),
    "sqs:SendMessage": ("send_message_batch", {"Entries": []}),
}


class SQSDoctor:
    """Checks a queue's settings for a worker with these options."""

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
        self._client = QueueClient(parse_address(address), lease_seconds, client)
        self._lease_seconds, self._max_attempts = lease_seconds, max_attempts
        self._dead = SQSDeadLetters(self._client, dead_letters, clock)
        self._lambda = lambda_client

    def examine(self) -> Iterator[CheckResult]:
        """Yield the results, each as soon as its check is made.

        Raises ConfigError if the client cannot be made, because every check needs it.
        """
        self._client.retrying_client  # noqa: B018  # makes the client
        try:
            yield from self._examine()
        finally:
            self._client.close()

    def _examine(self) -> Iterator[CheckResult]:
        try:
            attributes = self._client.read_attributes("All")
        except HoldfastError as error:
            yield fail("queue", *_explain_queue_error(error))
            return
        yield from checks.check_queue(self._client.address.name, attributes)
        yield from _run_check("permissions", self._check_permissions)
        yield from checks.check_lease(attributes, self._lease_seconds)
        yield from checks.check_redrive_policy(attributes, self._max_attempts)
        yield from _run_check("dead letters", self._check_dead_letters, attributes)
        yield from checks.check_retention(attributes, self._lease_seconds)
        yield from checks.check_delay(attributes)
        yield from checks.check_in_flight(attributes)
        yield from self._check_functions(attributes)

    # -- permissions

    def _check_permissions(self) -> Iterator[CheckResult]:
        denied = [name for name, call in _PROBES.items() if self._is_denied(*call)]
        if denied:
            yield fail(
                "permissions",
                f"this user lacks {', '.join(denied)}",
                "allow them on the queue; a worker needs sqs:ReceiveMessage as well",
            )
        else:
            yield ok(
                "permissions",
                "this user may inspect, extend and delete; sending is not refused; "
                "sqs:ReceiveMessage was not tried, because that would count as an attempt",
            )

    def _is_denied(self, operation: str, arguments: Mapping[str, Any]) -> bool:
        try:
            self._client.call(operation, **arguments)
        except HoldfastError as error:
            if is_transient(error.__cause__ or error):
                raise
            return _get_code(error) in DENIED
        return False

    # -- dead letters

    def _check_dead_letters(self, source: checks.Attributes) -> Iterator[CheckResult]:
        try:
            queue = self._dead.find_queue()
            attributes = {} if queue is None else queue.read_attributes("All")
        except HoldfastError as error:
            yield _explain_dead_letters_error(error)
            return
        if queue is not None:
            yield from checks.check_dead_letters(queue.address.name, attributes, source)

    # -- Lambda functions fed by the queue

    def _check_functions(self, attributes: checks.Attributes) -> Iterator[CheckResult]:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            mappings = list(self._list_mappings(attributes.get("QueueArn", "")))
        except (BotoCoreError, ClientError, HoldfastError) as error:
            code = get_error_code(error) or type(error).__name__
            yield ok("lambda", f"cannot list the functions that the queue feeds ({code})")
            return
        if not mappings:
            yield ok("lambda", "the queue feeds no function here")
        for mapping in mappings:
            yield from checks.check_lambda(self._parse_mapping(mapping), attributes)

    def _list_mappings(self, arn: str) -> Iterator[Mapping[str, Any]]:
        pages = self._get_lambda_client().get_paginator("list_event_source_mappings")
        for page in pages.paginate(EventSourceArn=arn):
            yield from page.get("EventSourceMappings", ())

    def _get_lambda_client(self) -> Any:
        if self._lambda is None:
            address = self._client.address
            self._lambda = clients.make_fail_fast_client(
                "lambda",
                _LAMBDA_LEASE_SECONDS,
                region_name=address.region,
                endpoint_url=address.endpoint,
            )
        return self._lambda

    def _parse_mapping(self, mapping: Mapping[str, Any]) -> checks.LambdaMapping:
        arn = str(mapping.get("FunctionArn", ""))
        return checks.LambdaMapping(
            function=arn.partition(":function:")[2] or arn,
            enabled=mapping.get("State") not in ("Disabled", "Disabling"),
            timeout_seconds=self._read_timeout(arn),
            window_seconds=int(mapping.get("MaximumBatchingWindowInSeconds") or 0),
            reports_failures="ReportBatchItemFailures"
            in (mapping.get("FunctionResponseTypes") or ()),
        )

    def _read_timeout(self, arn: str) -> int | None:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            response = self._get_lambda_client().get_function_configuration(FunctionName=arn)
        except (BotoCoreError, ClientError):  # of another account, or without permission
            return None
        return int(response["Timeout"])


def _run_check(
    name: str, check: Callable[..., Iterable[CheckResult]], *given: Any
) -> Iterator[CheckResult]:
    """Yield the check's results, and a failure if the check cannot be made."""
    try:
        yield from check(*given)
    except HoldfastError as error:
        yield fail(name, f"cannot be checked: {error}", "try again when SQS responds")


def _explain_dead_letters_error(error: HoldfastError) -> CheckResult:
    code = _get_code(error)
    if code in NO_QUEUE:
        return fail(
            "dead letters",
            f"the queue for them does not exist ({error}): a message that fails permanently "
            "stays and is delivered again and again",
            "create it, or name another queue in the redrive policy",
        )
    if code in DENIED:
        return warn(
            "dead letters",
            f"this user may not inspect the queue for them ({code})",
            "allow sqs:GetQueueUrl, GetQueueAttributes and SendMessage there, because workers "
            "send dead letters with their reasons",
        )
    return fail("dead letters", f"cannot be checked: {error}", "try again when SQS responds")


def _explain_queue_error(error: HoldfastError) -> tuple[str, str]:
    """Return the problem and its remedy."""
    code = _get_code(error)
    text = str(error)
    if code in NO_QUEUE:
        return text, "create it with your other infrastructure: Holdfast creates no SQS queues"
    if code in DENIED:
        return text, "allow it for this user or role, on the queue's ARN"
    return text, "check that this machine reaches SQS with the intended region and credentials"


def _get_code(error: HoldfastError) -> str:
    return get_error_code(error.__cause__ or error)
