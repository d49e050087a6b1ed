"""What tests of SQS share."""
