"""The image, the systemd unit and the compose file fit the command line and the settings."""

import json
import re
from configparser import ConfigParser
from typing import Any

import pytest
import yaml

from holdfast.cli.main import CommandTable
from holdfast.text import parse_duration
from holdfast.variables import find_known_variables
from support.paths import ROOT
from support.stack_template import read_template

FOLDER = ROOT / "infra"
CONTAINERFILE = (FOLDER / "Containerfile").read_text()
COMPOSE = yaml.safe_load((FOLDER / "compose.yaml").read_text())
WORKER = COMPOSE["services"]["worker"]


def read_unit() -> ConfigParser:
    unit = ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]  # keeps capital letters
    unit.read(FOLDER / "holdfast-worker.service")
    return unit


UNIT = read_unit()["Service"]
UNIT_WORDS = UNIT["ExecStart"].split()[1:]
EACH_COMMAND = pytest.mark.parametrize("words", [UNIT_WORDS, WORKER["command"]])


def get_drain_seconds(words: list[str]) -> float:
    (drain,) = (word for word in words if word.startswith("--drain="))
    return parse_duration(drain.partition("=")[2])


@EACH_COMMAND
def test_the_command_and_its_options_exist(words: list[str]) -> None:
    command: Any = CommandTable("").load(words[0])
    options = {word.partition("=")[0] for word in words if word.startswith("--")}
    assert options <= {option for each in command.params for option in each.opts}


def test_work_is_killed_only_after_its_drain() -> None:
    assert int(UNIT["TimeoutStopSec"]) > get_drain_seconds(UNIT_WORDS)
    grace = parse_duration(WORKER["stop_grace_period"])
    assert grace > get_drain_seconds(WORKER["command"])


def test_systemd_stops_the_worker_and_not_its_children() -> None:
    assert (UNIT["KillMode"], UNIT["KillSignal"]) == ("mixed", "SIGTERM")


def test_the_unit_writes_only_to_its_own_folder() -> None:
    assert UNIT["ProtectSystem"] == "strict"
    assert UNIT["Environment"] == f"HOLDFAST_DATA_DIR=/var/lib/{UNIT['StateDirectory']}"


def test_every_variable_with_our_prefix_is_a_setting() -> None:
    texts = [CONTAINERFILE, str(COMPOSE), str(dict(UNIT))]
    names = {name for text in texts for name in re.findall(r"\bHOLDFAST_\w+", text)}
    assert names <= find_known_variables()


def test_images_are_pinned() -> None:
    bases = re.findall(r"^FROM (\S+)", CONTAINERFILE, re.MULTILINE)
    assert len(bases) == 2
    for image in [*bases, COMPOSE["services"]["aws"]["image"]]:
        assert re.search(r":\d+\.\d+\.\d+", image)
    assert "--constraint constraints.txt" in CONTAINERFILE


def test_the_image_runs_without_root() -> None:
    (user,) = re.findall(r"^USER (\d+):\d+$", CONTAINERFILE, re.MULTILINE)
    assert int(user) > 0
    assert f"--owner={user}" in CONTAINERFILE


def test_the_image_has_the_health_check_of_the_task_definitions() -> None:
    (words,) = re.findall(r"^HEALTHCHECK .*CMD (\[.+\])$", CONTAINERFILE, re.MULTILINE)
    command = json.loads(words)
    for name in ("queue", "exports"):
        task = read_template(name)["Resources"]["Task"]["Properties"]
        (container,) = task["ContainerDefinitions"]
        assert container["HealthCheck"]["Command"] == ["CMD", *command]
    assert command[-1] in WORKER["command"]


def test_the_build_context_has_what_the_image_copies() -> None:
    allowed = set(re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE))
    copied = re.findall(r"^COPY (?!--)(.+) \S+$", CONTAINERFILE, re.MULTILINE)
    assert {name for names in copied for name in names.split()} == allowed
    assert all((ROOT / name).exists() for name in allowed)
