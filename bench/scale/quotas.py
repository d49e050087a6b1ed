"""The quotas of AWS that this deployment can reach, with the setting that addresses each.

The figures are the defaults of an account in us-east-1, us-west-2 or eu-west-1. `fixed` quotas
cannot be raised. Some of the others are lower in a new account until AWS raises them.

    SQS        AWSSimpleQueueService/latest/SQSDeveloperGuide/quotas-messages.html
    states     step-functions/latest/dg/service-quotas.html
    Lambda     lambda/latest/dg/gettingstarted-limits.html and services-sqs-scaling.html
    DynamoDB   amazondynamodb/latest/developerguide/ServiceQuotas.html
    partition  amazondynamodb/latest/developerguide/bp-partition-key-design.html
    Fargate    general/latest/gr/ecs-service.html

All of them are below docs.aws.amazon.com.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Quota:
    """A limit of AWS, and what to do before it is reached."""

    name: str
    limit: float
    unit: str
    remedy: str = "request more"
    fixed: bool = False


HEARTBEAT_BUCKET = 3_000  # SendTaskHeartbeat; 1,500 in other regions
HEARTBEAT_REFILL = 500  # a second; 300 in other regions

QUOTAS = {
    "fargate.vcpu": Quota(
        "Fargate vCPUs on demand", 6, "vCPUs",
        "request more before the first deployment; the default is for a new account",
    ),
    "states.heartbeat": Quota(
        "Step Functions SendTaskHeartbeat", HEARTBEAT_REFILL,
        "calls/s, refill of a bucket of 3,000",
        "a longer STEP_FUNCTIONS_HEARTBEAT_INTERVAL_MS, HeartbeatSeconds three times that",
    ),
    "states.start": Quota(
        "Step Functions StartExecution", 300, "calls/s, refill of a bucket of 1,300"
    ),
    "states.transition": Quota(
        "Step Functions state transitions", 5_000,
        "transitions/s, which is also the size of the bucket",
    ),
    "states.open": Quota("Step Functions open executions", 1_000_000, "executions"),
    "lambda.concurrency": Quota(
        "Lambda concurrent executions", 1_000, "invocations at once",
        "request more, or lower MaximumConcurrency so that other functions keep their share",
    ),
    "lambda.mapping": Quota(
        "Lambda event source mapping of SQS", 1_000, "invocations at once for each queue",
        "more queues, such as one for each region of customers", fixed=True,
    ),
    "sqs.in_flight": Quota(
        "SQS messages in flight, standard queue", 120_000, "messages of a queue",
        "a second queue; a worker never holds more than its concurrency", fixed=True,
    ),
    "dynamodb.read": Quota(
        "DynamoDB reads of a table", 40_000, "read units/s",
        "fewer, larger tasks with more --concurrency, because each lists all active jobs",
    ),
    "dynamodb.write": Quota("DynamoDB writes of a table", 40_000, "write units/s"),
    "dynamodb.index_read": Quota(
        "DynamoDB reads of one partition (status-index, DOWNLOADING)", 3_000, "read units/s",
        "as above: the index has one partition for all active jobs", fixed=True,
    ),
    "dynamodb.index_write": Quota(
        "DynamoDB writes of one partition (status-index, DOWNLOADING)", 1_000,
        "write units/s", "fewer, larger jobs", fixed=True,
    ),
}  # fmt: skip
