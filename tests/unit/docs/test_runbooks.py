"""docs/runbooks.md has a section for each alarm of the templates, and commands that exist."""

import re
from typing import Any

import pytest

from holdfast.events import Event
from holdfast.queue.event_log import get_event_name
from support.paths import ROOT
from support.shell_commands import find_commands, find_problems
from support.stack_template import list_stacks

RUNBOOKS = "https://github.com/holdfast-py/holdfast/blob/main/docs/runbooks.md"
PAGE = (ROOT / "docs" / "runbooks.md").read_text()
SECTIONS = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))


def list_alarms() -> list[tuple[str, dict[str, Any]]]:
    """Return the alarms of all stacks, with the last part of their names."""
    return [
        (alarm["AlarmName"].rpartition("-")[2], alarm)
        for stack in list_stacks().values()
        for alarm in stack.find("AWS::CloudWatch::Alarm").values()
    ]


def test_the_sections_are_those_of_the_alarms() -> None:
    assert set(SECTIONS) == {name for name, _ in list_alarms()}


def test_each_description_names_the_section_of_its_alarm() -> None:
    for name, alarm in list_alarms():
        assert alarm["AlarmDescription"].endswith(f" See {RUNBOOKS}#{name.lower()}")


@pytest.mark.parametrize("name", SECTIONS)
def test_a_section_says_what_it_means_what_to_do_and_when_it_is_over(name: str) -> None:
    parts = re.findall(r"^\*\*(.+?)\*\*", SECTIONS[name], re.MULTILINE)
    assert parts == ["It means", "Look first", "Do", "It is over"]
    first = SECTIONS[name].partition("**Look first**")[2].partition("**Do**")[0]
    assert "```sh\n" in first


def test_every_command_exists() -> None:
    commands = find_commands(PAGE)
    assert len(commands) > 30
    assert [problem for words in commands for problem in find_problems(words)] == []


def test_a_command_that_does_not_exist_is_noticed() -> None:
    assert find_problems(["holdfast", "dead", "lift"])
    assert find_problems(["holdfast", "dead", "list", "--mine"])
    assert find_problems(["make", "check-stacks"])
    assert find_problems(["aws", "ecs", "describe-helpers"])
    assert find_problems(["aws", "ecs", "describe-services", "--service"])


def test_every_log_group_exists() -> None:
    groups = {
        group["LogGroupName"]
        for stack in list_stacks().values()
        for group in stack.find("AWS::Logs::LogGroup").values()
    }
    named = set(re.findall(r"/holdfast/[\w/-]+", PAGE))
    assert named
    assert named <= groups


def test_what_is_searched_in_the_log_is_an_event_or_a_level() -> None:
    import holdfast.chat.events
    import holdfast.exports.events

    assert holdfast.chat.events
    assert holdfast.exports.events
    names = {get_event_name(object.__new__(kind)) for kind in list_kinds(Event)}
    searched = set(re.findall(r"--filter-pattern (\w+)", PAGE))
    assert searched - names == {"ERROR"}


def list_kinds(kind: type[Event]) -> list[type[Event]]:
    below = [each for sub in kind.__subclasses__() for each in list_kinds(sub)]
    return [*kind.__subclasses__(), *below]


def test_figures_of_the_templates_are_right() -> None:
    thresholds = {
        alarm["AlarmName"].removeprefix("shop-"): alarm["Threshold"]
        for _, alarm in list_alarms()
    }
    oldest = SECTIONS["OldestMessage"]
    assert thresholds["work-OldestMessage"] == 15 * 60
    assert thresholds["export-OldestMessage"] == 60
    assert thresholds["chat-OldestMessage"] == 5 * 60
    assert "15 minutes for your handler, a minute for a job, 5 minutes" in oldest
    [machine] = list_stacks()["exports"].find("AWS::StepFunctions::StateMachine").values()
    state = machine["Definition"]["States"]["StartExportJob"]
    assert f"HeartbeatSeconds ({state['HeartbeatSeconds']})" in oldest
    assert f"TimeoutSeconds ({state['TimeoutSeconds']})" in SECTIONS["StepFunctionsTimeouts"]
