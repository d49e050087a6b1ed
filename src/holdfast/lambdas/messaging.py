"""The address of a Lambda function of conversations."""

from holdfast.chat.lambdas.messaging import handler as handler
