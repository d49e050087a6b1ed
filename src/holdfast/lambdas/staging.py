"""Stage 1 in Lambda: `holdfast.lambdas.staging.handler`.

Behind a function URL or an HTTP API it is Twilio's webhook. Behind an SQS queue it
stages the `Inbound` messages that producers push. It never raises.
"""

from holdfast.chat.lambdas import ChatRuntime
from holdfast.chat.lambdas.webhook import StagingFunction

handler = StagingFunction(ChatRuntime())
