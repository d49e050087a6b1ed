"""Jobs: work that fans out into tasks and is finished when each was counted, once."""
