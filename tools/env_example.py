"""Write infra/.env.example: every setting with its default, from the code of the settings.

Run `python tools/env_example.py` after a setting has changed. A test compares the file.
"""

from pathlib import Path
from typing import Any

from holdfast.lease.backoff import Backoff
from holdfast.variables import list_settings_kinds

FILE = Path(__file__).parents[1] / "infra" / ".env.example"
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
# What they mean: docs/reference/settings.md. Written by tools/env_example.py.

# -- what commands work on, unless it is given
#HOLDFAST_QUEUE=
#HOLDFAST_JOBS=
"""


def main() -> None:
    """Write the file."""
    FILE.write_text(format_example())


def format_example() -> str:
    """Return the text of the file. A variable that two kinds share is listed once."""
    text, listed = HEAD, set[str]()
    for kind in list_settings_kinds():
        text += f"\n# -- {TITLES[kind.__name__]}\n"
        for name, field in kind.model_fields.items():
            if (variable := kind.to_variable(name)) not in listed:
                text += f"#{variable}={format_default(field.default)}\n"
                listed.add(variable)
    return text


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
