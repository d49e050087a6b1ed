"""The `holdfast export` commands, put together."""

import typer

from holdfast.cli.export import inspect, maintenance, run, serve

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Download many files, check them, and put them into a folder or an S3 bucket.",
)
app.command(rich_help_panel="Work")(run.run)
app.command(rich_help_panel="Work")(serve.serve)
app.command("list", rich_help_panel="Look")(inspect.list_)
app.command(rich_help_panel="Look")(inspect.show)
app.command(rich_help_panel="Keep in order")(maintenance.tables)
app.command(rich_help_panel="Keep in order")(maintenance.doctor)
