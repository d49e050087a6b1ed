"""Run `sam validate --lint` on each template that is named.

The SAM CLI loads for longer than it checks, so one process checks all of them. Run this with
the Python of the SAM CLI, as `make templates` does.
"""

import sys

import click
from samcli.cli.main import cli

for template in sys.argv[1:]:
    try:
        cli(
            ["validate", "--lint", "--region", "eu-west-1", "--template", template],
            standalone_mode=False,
        )
    except click.ClickException as error:
        sys.exit(f"{template}: {error.format_message()}")
