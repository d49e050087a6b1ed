"""The permissions that each component needs, on what it uses. This is the only list.

A test compares the templates of infra/ with it. Start from it if you write your own.
"""

from collections.abc import Mapping

_SEND = ("sqs:SendMessage", "sqs:GetQueueUrl", "sqs:GetQueueAttributes")
_HANDLE = (  # messages that Lambda's event source receives and deletes with the function's role
    "sqs:ReceiveMessage",
    "sqs:DeleteMessage",
    "sqs:ChangeMessageVisibility",
    "sqs:GetQueueAttributes",
)
_RECEIVE = (*_HANDLE, "sqs:GetQueueUrl")
_POSTPONE = ("sqs:SendMessage",)  # such a message is sent again with a delay, but not to FIFO
# A conversation is read, and locked by an update.
_LOCK = ("dynamodb:GetItem", "dynamodb:UpdateItem")
_LOG = ("logs:CreateLogStream", "logs:PutLogEvents")

PERMISSIONS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "function of a queue": {
        "its queue": _HANDLE,
        "its queue, for messages that are newer than the code": _POSTPONE,
        "its queue for dead letters": _SEND,
        "its log": _LOG,
    },
    "holdfast work": {
        "its queue": _RECEIVE,
        "its queue, for messages that are newer than the code": _POSTPONE,
        "its queue for dead letters": _SEND,
        "its ECS task": ("ecs:UpdateTaskProtection",),
    },
    "holdfast export serve": {
        "its queue": _RECEIVE,
        "its queue for dead letters": _SEND,
        "the table of jobs": (
            "dynamodb:GetItem",
            "dynamodb:BatchGetItem",
            "dynamodb:PutItem",
            "dynamodb:UpdateItem",
        ),
        "the index of jobs": ("dynamodb:Query",),
        "the table of tasks": ("dynamodb:Query", "dynamodb:PutItem", "dynamodb:UpdateItem"),
        "the state machine": (
            "states:SendTaskHeartbeat",
            "states:SendTaskSuccess",
            "states:SendTaskFailure",
        ),
        "the files in S3": ("s3:PutObject", "s3:AbortMultipartUpload", "s3:GetObject"),
        "the lists in S3": ("s3:GetObject",),
        "the bucket of the lists": ("s3:ListBucket",),
        "its ECS task": ("ecs:UpdateTaskProtection",),
    },
    "staging": {
        "the table of conversations": ("dynamodb:PutItem",),
        "the table of staged messages": ("dynamodb:PutItem",),
        "the table of windows": ("dynamodb:GetItem", "dynamodb:PutItem", "dynamodb:UpdateItem"),
        "the queue of a channel": _SEND,
        "the secrets": ("secretsmanager:GetSecretValue",),
        "its log": _LOG,
    },
    "messaging": {
        "the table of conversations": _LOCK,
        "the table of staged messages": (
            "dynamodb:Query",
            "dynamodb:DeleteItem",
            "dynamodb:BatchWriteItem",
        ),
        "the table of windows": ("dynamodb:GetItem", "dynamodb:DeleteItem"),
        "the table of messages": (
            "dynamodb:GetItem",
            "dynamodb:Query",
            "dynamodb:BatchGetItem",
            "dynamodb:PutItem",
        ),
        "the table of parked batches": ("dynamodb:PutItem",),
        "the queue of a channel": (*_RECEIVE, "sqs:SendMessage"),
        "its queue for dead letters": _SEND,
        "the secrets": ("secretsmanager:GetSecretValue",),
        "its log": _LOG,
    },
    "sweeping": {
        "the table of conversations": _LOCK,
        "the table of staged messages": (
            "dynamodb:Scan",
            "dynamodb:Query",
            "dynamodb:DeleteItem",
            "dynamodb:BatchWriteItem",
        ),
        "the table of windows": ("dynamodb:GetItem", "dynamodb:PutItem", "dynamodb:UpdateItem"),
        "the table of messages": (
            "dynamodb:GetItem",
            "dynamodb:BatchGetItem",
            "dynamodb:PutItem",
        ),
        "the table of parked batches": ("dynamodb:PutItem",),
        "the queue of a channel": _SEND,
        "its log": _LOG,
    },
    "state machine": {"its queue": ("sqs:SendMessage",)},
    "start of tasks": {
        "the registry": ("ecr:GetAuthorizationToken",),
        "the repository of its image": (
            "ecr:BatchCheckLayerAvailability",
            "ecr:BatchGetImage",
            "ecr:GetDownloadUrlForLayer",
        ),
        "its log": _LOG,
    },
}
