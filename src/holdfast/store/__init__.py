"""What stores are built on: rows in a SQLite file, items in DynamoDB, and their files."""
