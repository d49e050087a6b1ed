"""Print how a deployed stack differs from what the code needs: `python -m infra.check NAME`."""

from typing import Annotated

import typer
from infra.check.examine import examine_stack

from holdfast.cli.arguments import AsJson
from holdfast.cli.console import silence_log
from holdfast.cli.doctor import print_check_results

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def check(
    stack: Annotated[str, typer.Argument(metavar="NAME", help="A CloudFormation stack.")],
    as_json: AsJson = False,
) -> None:
    """Check what a stack, and the stacks that it nests, have deployed. Nothing is changed."""
    with silence_log():
        print_check_results(examine_stack(stack), as_json)


if __name__ == "__main__":
    app(prog_name="python -m infra.check")
