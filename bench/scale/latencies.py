"""Seconds that each service takes. AWS publishes ranges, or nothing; these are guesses."""

LATENCIES = {
    "sqs": 0.022,  # tens to low hundreds of ms (SQS FAQ)
    "dynamodb": 0.008,  # single-digit ms (DynamoDB developer guide)
    "states": 0.032,
    "lambda.start": 0.010,
    "lambda.cold": 1.5,  # 100 ms to above 1 s (Lambda operator guide), and our imports
    "fargate.start": 60.0,  # 30 s to 2 min are reported for such images
    "model": 6.0,  # median of a reply of 400 characters
    "twilio": 0.4,
}
