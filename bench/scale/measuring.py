"""Count the calls of each flow, and write them to measured.json: `make scale-measure`."""

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

MEASURED = Path(__file__).with_name("measured.json")


def measure() -> dict[str, Any]:
    """Return the calls and capacity units of each flow, and what they were counted with."""
    from bench.scale.counting import count_chat_flows, count_job_flows

    names = ("holdfast-queue", "boto3", "moto")
    return {
        "versions": {name: version(name) for name in names},
        "flows": {**count_chat_flows(), **count_job_flows()},
    }


def read_measurements() -> dict[str, Any]:
    """Return the stored measurements."""
    measured: dict[str, Any] = json.loads(MEASURED.read_text())
    return measured


if __name__ == "__main__":
    MEASURED.write_text(json.dumps(measure(), indent=1, sort_keys=True) + "\n")
