"""A lean client for SQS, DynamoDB and Step Functions, which all speak AWS JSON 1.0.

client.py      JsonClient: one call with its retries; the methods of boto3's clients
signing.py     AWS Signature Version 4 for these requests
transport.py   connections: pool, timeouts, TLS, one request
responses.py   the bytes of one response, and the dict or the ClientError that boto3 returns
settings.py    operations, region, endpoint, credentials; when boto3 is used instead

Why it exists, and what it costs: docs/adr/0026-a-lean-aws-client.md.
"""
