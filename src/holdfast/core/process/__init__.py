"""Child processes: frames on a pipe, process groups, and an end with their parent."""
