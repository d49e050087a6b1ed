"""Register the `holdfast export` commands."""

import typer

from holdfast.cli.export import inspect, maintenance, run, serve

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Download many files, check them, and store them in a folder or an S3 bucket.",
)
app.command(rich_help_panel="Work")(run.run)
app.command(rich_help_panel="Work")(serve.serve)
app.command("list", rich_help_panel="Inspect")(inspect.list_)
app.command(rich_help_panel="Inspect")(inspect.show)
app.command(rich_help_panel="Maintain")(maintenance.tables)
app.command(rich_help_panel="Maintain")(maintenance.doctor)
