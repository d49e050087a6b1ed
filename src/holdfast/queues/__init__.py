"""The queues: folders of files, a SQLite file, Amazon SQS."""
