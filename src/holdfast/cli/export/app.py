"""The `holdfast export` commands, put together."""

import typer

from holdfast.cli.export import look, run, serve, upkeep

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Download many files, check them, and put them into a folder or an S3 bucket.",
)
app.command(rich_help_panel="Work")(run.run)
app.command(rich_help_panel="Work")(serve.serve)
app.command("list", rich_help_panel="Look")(look.list_)
app.command(rich_help_panel="Look")(look.show)
app.command(rich_help_panel="Keep in order")(upkeep.tables)
app.command(rich_help_panel="Keep in order")(upkeep.doctor)
