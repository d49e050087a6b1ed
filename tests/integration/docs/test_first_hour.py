"""The first hour of a new user: what README.md says, from a built wheel, on each Python.

The commands and the code are read from the page. Only the source of the package is another:
the wheel of this repository instead of a clone.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import ZipFile

import boto3
import pytest
from tools.other_pythons import OWN, find_python

from support.fresh_environment import FreshEnvironment
from support.paths import ROOT

if TYPE_CHECKING:
    from support.ministack_server import Ministack

pytest_plugins = ["support.ministack_server"]

README = (ROOT / "README.md").read_text()
QUEUES = re.findall(r"^export HOLDFAST_QUEUE=(\S+)$", README, re.MULTILINE)
IDS = re.findall(r"\bid=\"([\w-]+)\"", README)
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CLONE = "./holdfast"  # in the README


def read_steps(page: str) -> Iterator[tuple[str, str]]:
    """Yield the `sh` and `python` blocks of a page, each after the name of its file.

    The sentence before a block of Python names its file. That of commands is empty.
    """
    end = 0
    for block in BLOCK.finditer(page):
        language, text = block.groups()
        before = page[end : block.start()].strip().rpartition("\n\n")[2]
        end = block.end()
        if language == "python":
            names = re.findall(r"`([\w/]+\.py)`", before)
            assert names, f"the sentence before this block must name its file:\n{text}"
            yield names[-1], text
        elif language == "sh":
            yield "", text


def follow(environment: FreshEnvironment, name: str, text: str) -> str:
    """Write the file, or run the commands and return their output."""
    if not name:
        return environment.run(text.replace(CLONE, str(environment.wheel)))
    (environment.folder / name).write_text(text)
    return ""


def make_environment(folder: Path, version: str, **env: str) -> FreshEnvironment:
    """Make an environment of this Python, or skip the test if the machine has none."""
    python = find_python(version)
    if python is None:
        pytest.skip(f"Python {version} was found neither on the path nor in pyenv")
    return FreshEnvironment(folder, python, env)


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
@pytest.mark.nightly
def test_the_first_hour_of_a_new_user_works(
    version: str, tmp_path: Path, ministack: "Ministack"
) -> None:
    account = version.replace(".", "").zfill(12)  # its own, because the server is shared
    env = ministack.env | {"AWS_ACCESS_KEY_ID": account}
    environment = make_environment(tmp_path, version, **env)
    check_wheel(environment.wheel)
    create_queues(env)
    output = "".join(follow(environment, *step) for step in read_steps(README))
    assert "Traceback" not in output
    assert "None" not in output.splitlines()  # a result that was not kept
    assert f"holdfast-queue @ {environment.wheel.as_uri()}" in environment.run("pip freeze")
    for id in IDS:
        assert re.search(rf"^id +{id}\nstate +completed", output, re.MULTILINE), output
    assert QUEUES
    for queue in QUEUES:
        stats = json.loads(environment.run(f"holdfast status {queue} --json"))
        unfinished = {state: stats[state] for state in ("ready", "delayed", "leased", "failed")}
        assert not any(unfinished.values()), unfinished


def check_wheel(wheel: Path) -> None:
    """Check that the wheel has the pages of the web console, and the licence."""
    files = set(ZipFile(wheel).namelist())
    pages = (ROOT / "src" / "holdfast" / "web").rglob("*.*")
    needed = {str(page.relative_to(ROOT / "src")) for page in pages if page.suffix != ".pyc"}
    assert needed - files == set()
    assert any(name.endswith("dist-info/licenses/LICENSE") for name in files)


def create_queues(env: dict[str, str]) -> None:
    """Create the SQS queues of the page, which a new user has in an account."""
    sqs = boto3.client(
        "sqs",
        endpoint_url=env["AWS_ENDPOINT_URL"],
        region_name=env["AWS_DEFAULT_REGION"],
        aws_access_key_id=env["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=env["AWS_SECRET_ACCESS_KEY"],
    )
    for queue in QUEUES:
        kind, _, name = queue.partition(":")
        if kind == "sqs":
            sqs.create_queue(QueueName=name)


@pytest.mark.parametrize(
    "checker",
    [("mypy", "--strict", "--python-executable"), ("pyright", "--pythonpath")],
    ids=["mypy", "pyright"],
)
@pytest.mark.nightly
def test_type_checkers_accept_the_code_of_a_new_user(
    checker: tuple[str, ...], tmp_path: Path
) -> None:
    environment = make_environment(tmp_path, OWN)
    steps = list(read_steps(README))
    for name, text in steps:
        if name or "pip install" in text:
            follow(environment, name, text)
    names = [name for name, _ in steps if name]
    assert len(names) == len({*names}) > 0, "a file that is replaced would not be checked"
    checked = subprocess.run(
        [sys.executable, "-m", *checker, str(environment.python), *names],
        cwd=environment.folder,
        env=environment.env | {"PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"},  # else it asks the web
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, f"{checked.stdout}{checked.stderr}"
