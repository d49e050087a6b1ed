"""The `holdfast` command. Modules stay light at import: `--help` must answer at once."""
