"""Record every AWS call of a Python process, as one line of JSON each.

Python imports this module when it starts, if this folder is on PYTHONPATH. AWS_CALLS_FOLDER is
where the lines go, to a file for each component. A component is a Lambda function, or the name
in AWS_CALLS_COMPONENT; child processes belong to the component that started them.
"""

import json
import os
from typing import Any


def record_calls(path: str) -> None:
    """Add a handler to every botocore session that this process will make."""
    from botocore import handlers

    def write(service: str, operation: str, params: Any) -> None:
        line = json.dumps([service, operation, params], default=lambda _: None)
        with open(path, "ab", buffering=0) as file:  # one write, so that lines do not mix
            file.write(line.encode() + b"\n")

    def record(params: Any, model: Any, context: Any, **_: Any) -> None:
        context["recorded_params"] = params
        write(model.service_model.service_name, model.name, params)

    def record_missing_object(parsed: Any, context: Any, **_: Any) -> None:
        """S3 tells that an object does not exist only to those who may list the bucket."""
        if parsed.get("Error", {}).get("Code") == "NoSuchKey":
            write("s3", "ListObjectsV2", {"Bucket": context["recorded_params"]["Bucket"]})

    handlers.BUILTIN_HANDLERS += [
        ("before-parameter-build", record),
        ("after-call.s3.GetObject", record_missing_object),
    ]


_component = os.environ.get("AWS_CALLS_COMPONENT") or os.environ.get("AWS_LAMBDA_FUNCTION_NAME")
if _component and "AWS_CALLS_FOLDER" in os.environ:
    os.environ["HOLDFAST_AWS_CLIENT"] = "boto3"  # only botocore has handlers
    record_calls(os.path.join(os.environ["AWS_CALLS_FOLDER"], f"{_component}.jsonl"))
