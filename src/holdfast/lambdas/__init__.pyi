# Written by tools/stubs.py from the table of names in the module itself.
from holdfast.aws.lambdas.batch import sqs_batch as sqs_batch
