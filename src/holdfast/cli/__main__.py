"""Run `holdfast` as `python -m holdfast.cli`."""

from holdfast.cli.main import main

main()
