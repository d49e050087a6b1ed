"""`holdfast demo`: its scenarios run for real, and their totals can differ.

Each scenario runs to its end once. The export scenario covers a killed pool worker that is
replaced (JB-28) and a killed service whose successor fetches no counted file again (JB-16). It
checks that counters equal the task rows and that a file under its name is complete.
"""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from export_act import JOB
from queue_act import HANGING_TASK
from tools.other_pythons import OWN, find_python

from holdfast import open_jobs
from holdfast.jobs import TaskStatus
from support.cli.commands import clean_env, command, real, require_one_line
from support.fresh_environment import FreshEnvironment
from support.paths import ROOT
from support.waiting import wait_until

DEMO_SECONDS = 180.0  # a loaded machine needs longer than half a minute


class Demo:
    """A demo whose temporary folder the test can inspect."""

    def __init__(self, folder: Path, *options: str, **env: str) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            command("demo", *options),
            env=clean_env(TMPDIR=str(folder), **env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def processes(self) -> list[int]:
        """Return the workers, services and their children, found by their working folder."""
        if not Path("/proc").is_dir():
            return []
        return [int(p.name) for p in Path("/proc").iterdir() if self._is_in(p)]

    def _is_in(self, process: Path) -> bool:
        try:
            return process.name.isdigit() and os.readlink(process / "cwd").startswith(
                f"{self.folder}/holdfast-demo-"
            )
        except OSError:
            return False

    def find_leftovers(self) -> list[object]:
        return [*self.processes(), *self.folder.iterdir()]


Start = Callable[..., Demo]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Demo] = []

    def start(*options: str, **env: str) -> Demo:
        (folder := tmp_path / "tmp").mkdir()
        started.append(Demo(folder, *options, **env))
        return started[-1]

    yield start
    for demo in started:
        demo.process.kill()
        demo.process.communicate()
        for pid in demo.processes():
            os.kill(pid, signal.SIGKILL)


KINDS = pytest.mark.parametrize(
    "kind", ["file", pytest.param("sqlite", marks=pytest.mark.nightly)]
)


@KINDS
def test_the_totals_of_a_queue_match_after_a_kill_and_a_hang(start: Start, kind: str) -> None:
    demo = start("--act=queue", f"--queue={kind}", "--tasks=60", "--workers=3", "--json")
    out, log = demo.process.communicate(timeout=DEMO_SECONDS)
    assert demo.process.returncode == 0, log
    report = json.loads(out)["queue"]
    assert report["totals_match"] is True
    assert (report["pushed"], report["completed"], report["dead_lettered"]) == (60, 59, 1)
    assert (report["lost"], report["done_twice"]) == (0, 0)
    assert report["redelivered"] >= 3  # the hanging task, the flaky ones, those of the killed
    assert "killed with SIGKILL, holding company-" in log
    assert f"the watchdog ended the handler of {HANGING_TASK}" in log
    assert "other workers have taken over its tasks" in log
    wait_until(lambda: demo.find_leftovers() == [])


@KINDS
def test_the_totals_of_an_export_match_after_two_kills(start: Start, kind: str) -> None:
    demo = start("--act=export", f"--queue={kind}", "--files=30", "--json")
    out, log = demo.process.communicate(timeout=DEMO_SECONDS)
    assert demo.process.returncode == 0, log
    report = json.loads(out)["export"]
    assert report["totals_match"] is True
    assert (report["asked"], report["whole"], report["failed"]) == (30, 29, 1)
    assert (report["workers_replaced"], report["services_replaced"]) == (1, 1)
    assert (report["fetched_again"], report["acked"]) == (0, 1)
    assert "ended, SIGKILL: another one starts" in log
    counted = re.findall(r"is killed with SIGKILL, (\d+) files counted", log)
    assert int(counted[0]) >= 13  # 45 of 100
    assert "service 2: has the job" in log
    assert "the job is FAILED: JobCompletedWithFailures" in log
    wait_until(lambda: demo.find_leftovers() == [])


@KINDS
@pytest.mark.requirement("R002-002")
def test_the_totals_of_a_conversation_match_after_a_kill_before_the_send(
    start: Start, kind: str
) -> None:
    """The worker that takes over the expired lock (MS-01) sends the prepared reply,
    and nothing is written or sent twice. A message that arrives meanwhile is answered without
    another message (MS-03), and a webhook delivered again has no effect (MS-20). In the end
    each message is in the history once."""
    demo = start("--act=chat", f"--queue={kind}", "--json")
    out, log = demo.process.communicate(timeout=DEMO_SECONDS)
    assert demo.process.returncode == 0, f"{out}{log}"
    assert json.loads(out)["chat"] == {
        "messages": 4,
        "in_history": 4,
        "replies": 2,
        "recorded": 2,
        "asked": 2,
        "sent": 2,
        "answered_twice": 0,
        "lost": 0,
        "staged_left": 0,
        "locks_left": 0,
        "parked": 0,
        "workers_killed": 1,
        "taken_over": 1,
        "delivered_again": 1,
        "totals_match": True,
    }
    assert "is killed with SIGKILL, reply prepared, not sent" in log
    assert "after the kill; the reply is prepared" in log
    assert log.count("takes 1 of the messages as one batch") == 1
    wait_until(lambda: demo.find_leftovers() == [])


def test_make_demo_passes_the_kind_of_queue() -> None:
    for variables, option in (["QUEUE=sqlite"], " --queue=sqlite"), ([], ""):
        shown = subprocess.run(
            ["make", "--dry-run", "demo", *variables],
            cwd=ROOT,
            env={"PATH": os.environ["PATH"]},  # not that of a make that runs the tests
            capture_output=True,
            text=True,
            check=True,
        )
        assert shown.stdout.splitlines()[-1].rstrip().endswith(f"/holdfast demo{option}")


@pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="needs /proc")
@pytest.mark.parametrize(
    ("scenario", "number"),
    [
        ("all", signal.SIGINT),
        pytest.param("queue", signal.SIGTERM, marks=pytest.mark.nightly),
        ("export", signal.SIGTERM),
    ],
)
def test_it_leaves_nothing_behind_when_it_is_interrupted(
    start: Start, scenario: str, number: signal.Signals
) -> None:
    demo = start(f"--act={scenario}", "--tasks=60", "--workers=3", "--files=30")
    wait_until(lambda: len(demo.processes()) >= 4)  # workers, and handlers at work
    assert demo.process.stderr is not None
    address = re.findall(r"http://\S+", demo.process.stderr.readline())[0]
    shown = httpx.get(address).text
    assert "Queues" in shown
    assert ("Jobs" in shown) is (scenario in ("all", "export"))
    assert ("Conversations" in shown) is (scenario == "all")
    demo.process.send_signal(number)
    if number is signal.SIGINT:
        # An impatient Ctrl-C, at whatever moment of the end, must not leave anything behind.
        while demo.process.poll() is None:
            demo.process.send_signal(number)
            time.sleep(0.02)
    out, _ = demo.process.communicate(timeout=DEMO_SECONDS)
    assert demo.process.returncode == 130
    assert f"holdfast demo, 1 of {3 if scenario == 'all' else 1}: " in out
    assert demo.find_leftovers() == []  # at once, because the demo waits for its processes


def test_totals_that_do_not_match_end_with_1(start: Start) -> None:
    """One byte of a file is changed after the export has counted it."""
    demo = start("--act=export", "--files=30")
    folder = wait_until(lambda: list(demo.folder.glob("holdfast-demo-*/exported")))[0].parent
    with open_jobs(folder / "jobs.db") as jobs:
        done = TaskStatus.COMPLETED
        [task] = wait_until(
            lambda: jobs.find_by_id(JOB) and jobs.tasks(JOB, status=done, limit=1)
        )
    with (folder / "exported" / JOB / task.key).open("r+b") as file:
        byte = file.read(1)
        file.seek(0)
        file.write(bytes([byte[0] ^ 1]))
    out, _ = demo.process.communicate(timeout=DEMO_SECONDS)
    assert demo.process.returncode == 1
    assert "THE TOTALS DO NOT MATCH." in out
    counts = {line[:20].strip(): line[20:].split() for line in out.splitlines()}
    assert counts["lost"][0] == counts["visible, incomplete"][0] == "1"


def test_without_pycurl_the_export_scenario_is_skipped_with_one_line(
    start: Start, tmp_path: Path
) -> None:
    missing = tmp_path / "missing"
    missing.mkdir()
    (missing / "pycurl.py").write_text("raise ImportError('there is none')")
    path = os.pathsep.join([str(missing), os.environ.get("PYTHONPATH", "")])
    demo = start("--tasks=30", "--workers=2", PYTHONPATH=path)
    assert demo.process.stdout is not None
    # The first line lists the scenarios; that they run is tested elsewhere.
    assert demo.process.stdout.readline().startswith("holdfast demo, 1 of 2: 30 tasks")
    demo.process.send_signal(signal.SIGTERM)
    _, log = demo.process.communicate(timeout=20)  # a worker that ignores SIGTERM takes 30 s
    assert log.count("'.[export]'") == 1

    ran = real(tmp_path, "demo", "--act=export", env={"PYTHONPATH": path})
    assert ran.code == 2
    assert "pip install '.[export]'" in require_one_line(ran)


def test_it_runs_from_a_wheel(tmp_path: Path) -> None:
    """And from an sdist, of which the same build makes the wheel."""
    python = find_python(OWN)
    assert python is not None
    environment = FreshEnvironment(tmp_path, python, {})
    environment.run(f"pip install --quiet {environment.wheel}")
    out = environment.run("holdfast demo --act=queue --tasks=30 --workers=2 --json 2> log")
    assert json.loads(out)["queue"]["totals_match"] is True
    log = (environment.folder / "log").read_text()
    assert "watch the demo in a browser: the web console needs" in log
