"""What boto3.client("sqs") offers, answered by the simulator.

Arguments are checked by botocore itself against AWS's own description of the service: a
wrong type or name fails here as it would there.
"""

from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ParamValidationError
from botocore.loaders import Loader
from botocore.model import ServiceModel
from botocore.validate import ParamValidator

from holdfast.testing.sqs.batch import Answer

if TYPE_CHECKING:
    from holdfast.testing.sqs.service import SimulatedSqs


@cache
def _service_model() -> Any:
    """AWS's description of SQS, as botocore ships it."""
    return ServiceModel(Loader().load_service_model("sqs", "service-2"), "sqs")


class SimulatedSqsClient:
    """Has the methods, arguments and answers of boto3's client, and its exceptions.

    It does not retry: each call here is one request, as with `total_max_attempts=1`.
    """

    def __init__(
        self, service: "SimulatedSqs", region_name: str, read_timeout_seconds: float
    ) -> None:
        endpoint = f"https://sqs.{region_name}.amazonaws.com"
        self.meta = SimpleNamespace(region_name=region_name, endpoint_url=endpoint)
        self.read_timeout_seconds = read_timeout_seconds
        self._service = service

    def close(self) -> None:
        """Nothing is open."""

    def send_message(self, **request: Any) -> Answer:
        return self._call("SendMessage", request)

    def send_message_batch(self, **request: Any) -> Answer:
        return self._call("SendMessageBatch", request)

    def receive_message(self, **request: Any) -> Answer:
        return self._call("ReceiveMessage", request)

    def delete_message(self, **request: Any) -> Answer:
        return self._call("DeleteMessage", request)

    def delete_message_batch(self, **request: Any) -> Answer:
        return self._call("DeleteMessageBatch", request)

    def change_message_visibility(self, **request: Any) -> Answer:
        return self._call("ChangeMessageVisibility", request)

    def change_message_visibility_batch(self, **request: Any) -> Answer:
        return self._call("ChangeMessageVisibilityBatch", request)

    def get_queue_attributes(self, **request: Any) -> Answer:
        return self._call("GetQueueAttributes", request)

    def set_queue_attributes(self, **request: Any) -> Answer:
        return self._call("SetQueueAttributes", request)

    def get_queue_url(self, **request: Any) -> Answer:
        return self._call("GetQueueUrl", request)

    def create_queue(self, **request: Any) -> Answer:
        return self._call("CreateQueue", request)

    def delete_queue(self, **request: Any) -> Answer:
        return self._call("DeleteQueue", request)

    def list_queues(self, **request: Any) -> Answer:
        return self._call("ListQueues", request)

    def purge_queue(self, **request: Any) -> Answer:
        return self._call("PurgeQueue", request)

    def list_dead_letter_source_queues(self, **request: Any) -> Answer:
        return self._call("ListDeadLetterSourceQueues", request)

    def start_message_move_task(self, **request: Any) -> Answer:
        return self._call("StartMessageMoveTask", request)

    def list_message_move_tasks(self, **request: Any) -> Answer:
        return self._call("ListMessageMoveTasks", request)

    def _call(self, operation: str, request: dict[str, Any]) -> Answer:
        _check(operation, request)
        return self._service.call(operation, request, self)


def _check(operation: str, request: dict[str, Any]) -> None:
    shape = _service_model().operation_model(operation).input_shape
    report = ParamValidator().validate(request, shape)
    if report.has_errors():
        raise ParamValidationError(report=report.generate_report())
