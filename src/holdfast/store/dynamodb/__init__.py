"""DynamoDB: the client, values and expressions that stores share."""
