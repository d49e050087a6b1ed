"""The address of a Lambda function of conversations."""

from holdfast.chat.lambdas.sweeping import handler as handler
