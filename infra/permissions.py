"""The permissions that each component needs, on what it uses. This is the only list.

A test compares the templates of infra/ with it. Start from it if you write your own.
"""

from collections.abc import Mapping
from enum import Enum


class ComponentKind(Enum):
    """A part of the system that has its own role."""

    WORK_FUNCTION = "function of a queue"
    WORK_SERVICE = "holdfast work"
    EXPORT_SERVICE = "holdfast export serve"
    STAGING = "staging"
    MESSAGING = "messaging"
    SWEEPING = "sweeping"
    STATE_MACHINE = "state machine"
    TASK_START = "start of tasks"


class Use(Enum):
    """What a component uses."""

    QUEUE = "its queue"
    POSTPONED = "its queue, for messages that are newer than the code"
    DEAD_LETTERS = "its queue for dead letters"
    LOG = "its log"
    TASK = "its ECS task"
    REGISTRY = "the registry"
    REPOSITORY = "the repository of its image"
    STATE_MACHINE = "the state machine"
    JOBS = "the table of jobs"
    JOBS_INDEX = "the index of jobs"
    JOB_TASKS = "the table of tasks"
    FILES = "the files in S3"
    LISTS = "the lists in S3"
    LISTS_BUCKET = "the bucket of the lists"
    TRIGGERS = "the queue of a channel"
    CONVERSATIONS = "the table of conversations"
    STAGE = "the table of staged messages"
    WINDOWS = "the table of windows"
    HISTORY = "the table of messages"
    PARKED = "the table of parked batches"
    SECRETS = "the secrets"


_SEND = ("sqs:SendMessage", "sqs:GetQueueUrl", "sqs:GetQueueAttributes")
_HANDLE = (  # messages that Lambda's event source receives and deletes with the function's role
    "sqs:ReceiveMessage",
    "sqs:DeleteMessage",
    "sqs:ChangeMessageVisibility",
    "sqs:GetQueueAttributes",
)
_RECEIVE = (*_HANDLE, "sqs:GetQueueUrl")
_POSTPONE = ("sqs:SendMessage",)  # such a message is sent again with a delay, but not to FIFO
# A conversation is read, locked by an update, and its lock guards writes to other tables.
_LOCK = ("dynamodb:GetItem", "dynamodb:UpdateItem", "dynamodb:ConditionCheckItem")
_LOG = ("logs:CreateLogStream", "logs:PutLogEvents")

PERMISSIONS: Mapping[ComponentKind, Mapping[Use, tuple[str, ...]]] = {
    ComponentKind.WORK_FUNCTION: {
        Use.QUEUE: _HANDLE,
        Use.POSTPONED: _POSTPONE,
        Use.DEAD_LETTERS: _SEND,
        Use.LOG: _LOG,
    },
    ComponentKind.WORK_SERVICE: {
        Use.QUEUE: _RECEIVE,
        Use.POSTPONED: _POSTPONE,
        Use.DEAD_LETTERS: _SEND,
        Use.TASK: ("ecs:UpdateTaskProtection",),
    },
    ComponentKind.EXPORT_SERVICE: {
        Use.QUEUE: _RECEIVE,
        Use.DEAD_LETTERS: _SEND,
        Use.JOBS: (
            "dynamodb:GetItem",
            "dynamodb:BatchGetItem",
            "dynamodb:PutItem",
            "dynamodb:UpdateItem",
        ),
        Use.JOBS_INDEX: ("dynamodb:Query",),
        Use.JOB_TASKS: ("dynamodb:Query", "dynamodb:PutItem", "dynamodb:UpdateItem"),
        Use.STATE_MACHINE: (
            "states:SendTaskHeartbeat",
            "states:SendTaskSuccess",
            "states:SendTaskFailure",
        ),
        Use.FILES: ("s3:PutObject", "s3:AbortMultipartUpload", "s3:GetObject"),
        Use.LISTS: ("s3:GetObject",),
        Use.LISTS_BUCKET: ("s3:ListBucket",),
        Use.TASK: ("ecs:UpdateTaskProtection",),
    },
    ComponentKind.STAGING: {
        Use.CONVERSATIONS: ("dynamodb:PutItem",),
        Use.STAGE: ("dynamodb:PutItem",),
        Use.WINDOWS: ("dynamodb:PutItem", "dynamodb:UpdateItem"),
        Use.TRIGGERS: _SEND,
        Use.SECRETS: ("secretsmanager:GetSecretValue",),
        Use.LOG: _LOG,
    },
    ComponentKind.MESSAGING: {
        Use.CONVERSATIONS: _LOCK,
        Use.STAGE: ("dynamodb:Query", "dynamodb:DeleteItem", "dynamodb:BatchWriteItem"),
        Use.WINDOWS: ("dynamodb:GetItem", "dynamodb:DeleteItem"),
        Use.HISTORY: (
            "dynamodb:Query",
            "dynamodb:BatchGetItem",
            "dynamodb:PutItem",
            "dynamodb:BatchWriteItem",
        ),
        Use.PARKED: ("dynamodb:PutItem",),
        Use.TRIGGERS: (*_RECEIVE, "sqs:SendMessage"),
        Use.DEAD_LETTERS: _SEND,
        Use.SECRETS: ("secretsmanager:GetSecretValue",),
        Use.LOG: _LOG,
    },
    ComponentKind.SWEEPING: {
        Use.CONVERSATIONS: _LOCK,
        Use.STAGE: (
            "dynamodb:Scan",
            "dynamodb:Query",
            "dynamodb:DeleteItem",
            "dynamodb:BatchWriteItem",
        ),
        Use.WINDOWS: ("dynamodb:PutItem", "dynamodb:UpdateItem"),
        Use.HISTORY: ("dynamodb:BatchGetItem", "dynamodb:PutItem"),
        Use.PARKED: ("dynamodb:PutItem",),
        Use.TRIGGERS: _SEND,
        Use.LOG: _LOG,
    },
    ComponentKind.STATE_MACHINE: {Use.QUEUE: ("sqs:SendMessage",)},
    ComponentKind.TASK_START: {
        Use.REGISTRY: ("ecr:GetAuthorizationToken",),
        Use.REPOSITORY: (
            "ecr:BatchCheckLayerAvailability",
            "ecr:BatchGetImage",
            "ecr:GetDownloadUrlForLayer",
        ),
        Use.LOG: _LOG,
    },
}
