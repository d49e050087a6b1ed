"""The `holdfast` command. Its modules import little, so that `--help` responds at once."""
