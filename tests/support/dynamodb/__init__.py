"""DynamoDB tables on moto, and clients with faults."""
