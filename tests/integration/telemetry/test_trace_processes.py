"""Traces through processes: from the message of a customer to the attempt that answers it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from support.cli.commands import clean_env

PROGRAM = """
import sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

spans = open("spans.jsonl", "a")
write = lambda span: span.to_json(indent=None) + "\\n"
provider = TracerProvider()
exporter = ConsoleSpanExporter(out=spans, formatter=write)
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)

from holdfast.cli.main import main

with trace.get_tracer("test").start_as_current_span(sys.argv[2]):
    main()
"""
ENV = {"HOLDFAST_CHAT_WINDOW_SECONDS": "0", "HOLDFAST_CHAT_QUIET_SECONDS": "0"}


def run(folder: Path, *arguments: str, **env: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        cwd=folder,
        env=clean_env(**ENV, **env),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


def read_spans(folder: Path) -> dict[str, dict[str, Any]]:
    lines = (folder / "spans.jsonl").read_text().splitlines()
    spans = [json.loads(line) for line in lines]
    return {span["name"]: span for span in spans}


def test_a_conversation_is_one_trace_from_the_message_to_its_attempt(tmp_path: Path) -> None:
    run(tmp_path, "chat", "send", "hello there", HOLDFAST_OTEL="parent")
    run(tmp_path, "chat", "work", "--until-idle", HOLDFAST_OTEL="parent")
    spans = read_spans(tmp_path)
    [process] = [span for name, span in spans.items() if name.startswith("process")]
    assert process["context"]["trace_id"] == spans["send"]["context"]["trace_id"]
    assert "hello there" not in (tmp_path / "spans.jsonl").read_text()


def test_without_the_setting_there_is_no_span_of_ours(tmp_path: Path) -> None:
    run(tmp_path, "chat", "send", "hello")
    run(tmp_path, "chat", "work", "--until-idle")
    assert set(read_spans(tmp_path)) == {"send", "work"}
