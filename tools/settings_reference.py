"""Write what the code of the settings says: the tables of docs/reference/settings.md, and
infra/.env.example.

Run `python tools/settings_reference.py` after a setting has changed. A test compares the files.
The meaning of a setting is the comment that begins with "#:" before its field.
"""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.lease.backoff import Backoff
from holdfast.queues.settings import QueueSettings
from holdfast.settings import Settings
from holdfast.variables import list_settings_kinds

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "settings.md"
EXAMPLE = ROOT / "infra" / ".env.example"
TITLES = {
    "SqsSettings": "queues",
    "AwsSettings": "Amazon's services",
    "TelemetrySettings": "metrics and traces",
    "ExportSettings": "exports",
    "HeartbeatSettings": "heartbeats of jobs",
    "ChatSettings": "conversations",
}
HEAD = """\
# Every setting of Holdfast with its default. Remove the # of a line to change its value.
# What they mean: docs/reference/settings.md. Written by tools/settings_reference.py.

# -- what commands work on, unless it is given
#HOLDFAST_QUEUE=
"""
TABLE = """\
| setting | variable | default | meaning |
|---|---|---|---|
"""
_MEANING = re.compile(r"((?:^    #: .*\n)+)    (\w+):", re.MULTILINE)


def main() -> None:
    """Write both files."""
    EXAMPLE.write_text(format_example())
    PAGE.write_text(format_page(PAGE.read_text()))


def format_example() -> str:
    """Return the text of the example. A variable that two kinds share is listed once."""
    text, listed = HEAD, set[str]()
    for kind in list_settings_kinds():
        text += f"\n# -- {TITLES[kind.__name__]}\n"
        for name, field in kind.model_fields.items():
            if (variable := kind.to_variable(name)) not in listed:
                text += f"#{variable}={format_default(field.default)}\n"
                listed.add(variable)
    return text


def format_page(page: str) -> str:
    """Return the page with the table of each kind after the comment that names the kind."""
    for kind in (QueueSettings, *list_settings_kinds()):
        mark = f"<!-- {kind.__name__} -->\n"
        before, _, after = page.partition(mark)
        rest = re.sub(r"\A(?:\|.*\n)*", "", after)
        page = f"{before}{mark}{TABLE}{''.join(format_rows(kind))}{rest}"
    return page


def format_rows(kind: type[Settings]) -> Iterator[str]:
    """Yield a row for each setting that the kind declares itself."""
    for comment, name in _MEANING.findall(inspect.getsource(kind)):
        meaning = " ".join(line.strip().removeprefix("#: ") for line in comment.splitlines())
        default = kind.model_fields[name].default
        text = format_default(default) or "none"
        shown = f"`{text}`" if isinstance(default, str | Backoff) else text
        yield f"| `{name}` | `{kind.to_variable(name)}` | {shown} | {meaning} |\n"


def format_default(value: Any) -> str:
    """Return a default as the variable would have it. None and an empty list are empty."""
    match value:
        case None | ():
            return ""
        case bool():
            return str(value).lower()
        case float():
            return f"{value:.12g}"
        case Backoff():
            maximum = f"max {value.max_seconds:g}s"
            return f"{value.first_seconds:g}s,x{value.factor:g},{maximum}"
    return str(value)


if __name__ == "__main__":
    main()
