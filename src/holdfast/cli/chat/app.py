"""The `holdfast chat` commands, put together."""

import typer

from holdfast.cli.chat import look, people, send, upkeep, work

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Answer customers' messages in batches: each batch once, by a writer or a person.",
)
app.command(rich_help_panel="Work")(send.send)
app.command(rich_help_panel="Work")(work.work)
app.command(rich_help_panel="Look")(look.show)
app.command(rich_help_panel="Look")(look.outbox)
app.command(rich_help_panel="People")(people.parked)
app.command(rich_help_panel="People")(people.hand)
app.command(rich_help_panel="Keep in order")(upkeep.sweep)
app.command(rich_help_panel="Keep in order")(upkeep.tables)
app.command(rich_help_panel="Keep in order")(upkeep.doctor)
