"""The quotas of AWS that this deployment can reach, with the setting that addresses each.

The figures are the defaults of an account in us-east-1, us-west-2 or eu-west-1. `fixed` quotas
cannot be raised. Some of the others are lower in a new account until AWS raises them.
"""

from dataclasses import dataclass

SQS = "docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/quotas-messages.html"
STATES = "docs.aws.amazon.com/step-functions/latest/dg/service-quotas.html"
LAMBDA = "docs.aws.amazon.com/lambda/latest/dg/gettingstarted-limits.html"
DYNAMODB = "docs.aws.amazon.com/amazondynamodb/latest/developerguide/ServiceQuotas.html"
FARGATE = "docs.aws.amazon.com/general/latest/gr/ecs-service.html"


@dataclass(frozen=True, slots=True)
class Quota:
    """A limit of AWS, and what to do before it is reached."""

    name: str
    limit: float
    unit: str
    source: str
    remedy: str
    fixed: bool = False


HEARTBEAT_BUCKET = 3_000  # SendTaskHeartbeat; 1,500 in other regions
HEARTBEAT_REFILL = 500  # a second; 300 in other regions

QUOTAS = {
    "fargate.vcpu": Quota(
        "Fargate vCPUs on demand",
        6,
        "vCPUs",
        FARGATE,
        "request more before the first deployment; the default is for a new account",
    ),
    "states.heartbeat": Quota(
        "Step Functions SendTaskHeartbeat",
        HEARTBEAT_REFILL,
        "calls/s, refill of a bucket of 3,000",
        STATES,
        "a longer STEP_FUNCTIONS_HEARTBEAT_INTERVAL_MS, HeartbeatSeconds three times that",
    ),
    "states.start": Quota(
        "Step Functions StartExecution",
        300,
        "calls/s, refill of a bucket of 1,300",
        STATES,
        "request more",
    ),
    "states.transition": Quota(
        "Step Functions state transitions",
        5_000,
        "transitions/s, which is also the size of the bucket",
        STATES,
        "request more",
    ),
    "states.open": Quota(
        "Step Functions open executions", 1_000_000, "executions", STATES, "request more"
    ),
    "lambda.concurrency": Quota(
        "Lambda concurrent executions",
        1_000,
        "invocations at once",
        LAMBDA,
        "request more, or lower MaximumConcurrency so that other functions keep their share",
    ),
    "lambda.mapping": Quota(
        "Lambda event source mapping of SQS",
        1_000,
        "invocations at once for each queue",
        "docs.aws.amazon.com/lambda/latest/dg/services-sqs-scaling.html",
        "more queues, such as one for each region of customers",
        fixed=True,
    ),
    "sqs.in_flight": Quota(
        "SQS messages in flight, standard queue",
        120_000,
        "messages of a queue",
        SQS,
        "a second queue; a worker never holds more than its concurrency",
        fixed=True,
    ),
    "dynamodb.read": Quota(
        "DynamoDB reads of a table",
        40_000,
        "read units/s",
        DYNAMODB,
        "fewer, larger tasks with more --concurrency, because each lists all active jobs",
    ),
    "dynamodb.write": Quota(
        "DynamoDB writes of a table", 40_000, "write units/s", DYNAMODB, "request more"
    ),
    "dynamodb.index_read": Quota(
        "DynamoDB reads of one partition (status-index, DOWNLOADING)",
        3_000,
        "read units/s",
        "docs.aws.amazon.com/amazondynamodb/latest/developerguide/bp-partition-key-design.html",
        "as above: the index has one partition for all active jobs",
        fixed=True,
    ),
    "dynamodb.index_write": Quota(
        "DynamoDB writes of one partition (status-index, DOWNLOADING)",
        1_000,
        "write units/s",
        "docs.aws.amazon.com/amazondynamodb/latest/developerguide/bp-partition-key-design.html",
        "fewer, larger jobs",
        fixed=True,
    ),
}
