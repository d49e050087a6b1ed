"""Child processes: framed messages over pipes, process groups, and a guard for orphans."""
