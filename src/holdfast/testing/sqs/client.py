"""The methods of boto3.client("sqs"), which the simulation serves.

botocore itself checks the arguments against AWS's own description of the service, so a wrong
type or name fails as it does with AWS.
"""

from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ParamValidationError
from botocore.loaders import Loader
from botocore.model import ServiceModel
from botocore.validate import ParamValidator

from holdfast.testing.sqs.batch import Response

if TYPE_CHECKING:
    from holdfast.testing.sqs.service import SimulatedSqs


@cache
def _service_model() -> Any:
    """Load AWS's description of SQS, which botocore ships."""
    return ServiceModel(Loader().load_service_model("sqs", "service-2"), "sqs")


class SimulatedSqsClient:
    """A client with the methods, arguments, responses and exceptions of boto3's.

    It does not retry. Each call is one request, as with `total_max_attempts=1`.
    """

    def __init__(
        self, service: "SimulatedSqs", region_name: str, read_timeout_seconds: float
    ) -> None:
        endpoint = f"https://sqs.{region_name}.amazonaws.com"
        self.meta = SimpleNamespace(region_name=region_name, endpoint_url=endpoint)
        self.read_timeout_seconds = read_timeout_seconds
        self._service = service

    def close(self) -> None:
        """Do nothing, because no connection is open."""

    def send_message(self, **request: Any) -> Response:
        """Call SendMessage."""
        return self._call("SendMessage", request)

    def send_message_batch(self, **request: Any) -> Response:
        """Call SendMessageBatch."""
        return self._call("SendMessageBatch", request)

    def receive_message(self, **request: Any) -> Response:
        """Call ReceiveMessage."""
        return self._call("ReceiveMessage", request)

    def delete_message(self, **request: Any) -> Response:
        """Call DeleteMessage."""
        return self._call("DeleteMessage", request)

    def delete_message_batch(self, **request: Any) -> Response:
        """Call DeleteMessageBatch."""
        return self._call("DeleteMessageBatch", request)

    def change_message_visibility(self, **request: Any) -> Response:
        """Call ChangeMessageVisibility."""
        return self._call("ChangeMessageVisibility", request)

    def change_message_visibility_batch(self, **request: Any) -> Response:
        """Call ChangeMessageVisibilityBatch."""
        return self._call("ChangeMessageVisibilityBatch", request)

    def get_queue_attributes(self, **request: Any) -> Response:
        """Call GetQueueAttributes."""
        return self._call("GetQueueAttributes", request)

    def set_queue_attributes(self, **request: Any) -> Response:
        """Call SetQueueAttributes."""
        return self._call("SetQueueAttributes", request)

    def get_queue_url(self, **request: Any) -> Response:
        """Call GetQueueUrl."""
        return self._call("GetQueueUrl", request)

    def create_queue(self, **request: Any) -> Response:
        """Call CreateQueue."""
        return self._call("CreateQueue", request)

    def delete_queue(self, **request: Any) -> Response:
        """Call DeleteQueue."""
        return self._call("DeleteQueue", request)

    def list_queues(self, **request: Any) -> Response:
        """Call ListQueues."""
        return self._call("ListQueues", request)

    def purge_queue(self, **request: Any) -> Response:
        """Call PurgeQueue."""
        return self._call("PurgeQueue", request)

    def list_dead_letter_source_queues(self, **request: Any) -> Response:
        """Call ListDeadLetterSourceQueues."""
        return self._call("ListDeadLetterSourceQueues", request)

    def start_message_move_task(self, **request: Any) -> Response:
        """Call StartMessageMoveTask."""
        return self._call("StartMessageMoveTask", request)

    def list_message_move_tasks(self, **request: Any) -> Response:
        """Call ListMessageMoveTasks."""
        return self._call("ListMessageMoveTasks", request)

    def _call(self, operation: str, request: dict[str, Any]) -> Response:
        _check(operation, request)
        return self._service.call(operation, request, self)


def _check(operation: str, request: dict[str, Any]) -> None:
    shape = _service_model().operation_model(operation).input_shape
    report = ParamValidator().validate(request, shape)
    if report.has_errors():
        raise ParamValidationError(report=report.generate_report())
