"""Register the `holdfast chat` commands."""

import typer

from holdfast.cli.chat import inspect, maintenance, parked, send, work

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Answer customers' messages in batches: each batch once, by a writer or a person.",
)
app.command(rich_help_panel="Work")(send.send)
app.command(rich_help_panel="Work")(work.work)
app.command(rich_help_panel="Inspect")(inspect.show)
app.command(rich_help_panel="Inspect")(inspect.outbox)
app.command(rich_help_panel="Operate")(parked.parked)
app.command(rich_help_panel="Operate")(parked.assign)
app.command(rich_help_panel="Maintain")(maintenance.sweep)
app.command(rich_help_panel="Maintain")(maintenance.tables)
app.command(rich_help_panel="Maintain")(maintenance.doctor)
