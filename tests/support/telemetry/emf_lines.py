"""A check of EMF lines against the specification of CloudWatch's embedded metric format."""

import json
import re
from typing import Any

MAX_BYTES = 256 * 1024
UNITS = {"Seconds", "Milliseconds", "Count"}
NAMESPACE = re.compile(r"[0-9A-Za-z.\-_/#:]{1,255}")


def parse_lines(text: str) -> list[dict[str, Any]]:
    """Return the lines as objects. Fails if CloudWatch would refuse one of them."""
    assert text == "" or text.endswith("\n")
    return [check_line(line) for line in text.splitlines()]


def find_lines(text: str) -> list[dict[str, Any]]:
    """Return the EMF lines of an output that has other lines too."""
    return [check_line(line) for line in text.splitlines() if line.startswith('{"_aws"')]


def check_line(line: str) -> dict[str, Any]:
    assert len(line.encode()) < MAX_BYTES
    root: dict[str, Any] = json.loads(line, parse_constant=refuse_constant)
    aws = root["_aws"]
    assert set(aws) == {"Timestamp", "CloudWatchMetrics"}
    assert type(aws["Timestamp"]) is int
    [directive] = aws["CloudWatchMetrics"]
    check_directive(root, directive)
    return root


def refuse_constant(name: str) -> None:
    raise AssertionError(f"JSON has no {name}")


def check_directive(root: dict[str, Any], directive: dict[str, Any]) -> None:
    assert set(directive) == {"Namespace", "Dimensions", "Metrics"}
    assert NAMESPACE.fullmatch(directive["Namespace"])
    [dimensions] = directive["Dimensions"]
    assert len(dimensions) <= 30
    for name in dimensions:
        assert isinstance(root[name], str)
        assert 1 <= len(root[name]) <= 1024
        assert root[name].isascii()
        assert root[name].isprintable()
    metrics = directive["Metrics"]
    assert 1 <= len(metrics) <= 100
    names = [metric["Name"] for metric in metrics]
    assert len(set(names)) == len(names)
    for metric in metrics:
        assert set(metric) == {"Name", "Unit"}
        assert metric["Unit"] in UNITS
        check_value(root[metric["Name"]])
    assert set(root) == {"_aws", *dimensions, *names}


def check_value(value: Any) -> None:
    values = value if isinstance(value, list) else [value]
    assert 1 <= len(values) <= 100
    for number in values:
        assert type(number) in (int, float)
        assert abs(number) <= 2**360


def get_labels(line: dict[str, Any]) -> dict[str, str]:
    [directive] = line["_aws"]["CloudWatchMetrics"]
    return {name: line[name] for name in directive["Dimensions"][0]}


def get_values(line: dict[str, Any]) -> dict[str, Any]:
    [directive] = line["_aws"]["CloudWatchMetrics"]
    return {metric["Name"]: line[metric["Name"]] for metric in directive["Metrics"]}
