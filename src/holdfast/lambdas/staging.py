"""The address of a Lambda function of conversations."""

from holdfast.chat.lambdas.staging import handler as handler
