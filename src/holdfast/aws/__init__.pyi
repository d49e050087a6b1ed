# Written by tools/stubs.py from the table of names in the module itself.
from holdfast.aws.heartbeat import SQSHeartbeat as SQSHeartbeat
from holdfast.aws.heartbeat import interval_from_env as interval_from_env
from holdfast.aws.heartbeat import stop_all as stop_all
from holdfast.aws.heartbeat import visibility_timeout_of as visibility_timeout_of
from holdfast.aws.lambdas.batch import sqs_batch as sqs_batch
from holdfast.chat.dynamodb import DynamoDBConversations as DynamoDBConversations
from holdfast.exports.dynamodb import DynamoDBJobs as DynamoDBJobs
from holdfast.exports.step_functions import StepFunctionsCallbacks as StepFunctionsCallbacks
from holdfast.queues.sqs import SQSQueue as SQSQueue
