"""`holdfast export run` and its neighbours: real processes, a real server, real kills.

JB-15, JB-16, JB-28 (going on after a death), JB-34 (names), JB-35, I-JB-13 (canaries).
"""

import json
import os
import pty
import select
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from cli_kit import PATIENCE_SECONDS, Cli, Ran, command, eventually, one_line, real
from cli_kit import clean_env as environment
from export_cli_place import (
    CANARY,
    NO_AWS,
    TOKEN,
    ExportCli,
    await_line,
    children,
    ended,
    export_cli,
    workers_of,
)

from holdfast.cli.export.listing import read_list
from holdfast.cli.export.live_view import in_bytes
from holdfast.cli.export.options import size
from holdfast.jobs.model import JobStatus
from loopback_http import cut, file, redirect
from workers.kit import is_alive

COMMANDS = ("run", "serve", "list", "show", "tables", "doctor")


@pytest.fixture
def cli(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Cli:
    for name, value in NO_AWS.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    return Cli(tmp_path, capsys, monkeypatch)


@pytest.fixture
def place(cli: Cli) -> Iterator[ExportCli]:
    with export_cli(cli) as place:
        yield place


def told(ran: Ran) -> str:
    """All it said; no URL's query and no token is among it."""
    assert CANARY not in ran.out + ran.err
    assert TOKEN not in ran.out + ran.err
    return ran.out + ran.err


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_and_is_in_the_reference(cli: Cli, command: str) -> None:
    assert f"Usage: holdfast export {command}" in cli("export", command, "--help").out
    reference = (Path(__file__).parents[2] / "docs/reference/cli.md").read_text()
    assert f"`holdfast export {command}" in reference


# -- all goes well


def test_a_list_is_fetched_once_however_often_it_is_asked_for(place: ExportCli) -> None:
    place.serve("a.txt", "b.txt")
    ran = place.run(place.urls("a.txt", "b.txt", "a.txt"))
    assert ran.code == 0, ran.err
    assert "COMPLETED: 2 of 2 done" in told(ran)
    assert place.files() == place.whole("a.txt", "b.txt")
    again = place.run("urls.txt")
    assert again.code == 0
    assert "all done before, nothing to do" in told(again)
    assert "delete the job store out/.holdfast/jobs.db" in again.err
    assert place.asked("a.txt", "b.txt") == [1, 1]


def test_a_list_may_come_on_standard_input_and_the_answer_as_json(place: ExportCli) -> None:
    place.serve("a.txt")
    named = json.dumps({"url": place.url("a.txt"), "key": "sub/ä.txt"})
    ran = place.run("-", "--json", stdin=f"# one\n{named}\n".encode())
    told(ran)
    assert ran.code == 0, ran.err
    [job] = place.stored()
    assert ran.json["job"] == job.job_id
    assert (ran.json["status"], ran.json["completed"]) == ("COMPLETED", 1)
    assert ran.json["bytes"] == len(place.data("a.txt"))
    assert place.files() == {"sub/ä.txt": place.data("a.txt")}


def test_an_empty_list_is_done(place: ExportCli) -> None:
    (place.folder / "none.txt").write_text("# nothing today\n")
    ran = place.run("none.txt")
    assert ran.code == 0, ran.err
    assert "COMPLETED: 0 of 0 done" in ran.out


# -- some fail


def test_what_failed_is_named_and_tried_again_alone(place: ExportCli) -> None:
    bad = tuple(f"bad{number:02}" for number in range(11))
    place.serve("a.txt", bad=bad)
    ran = place.run(place.urls("a.txt", *bad))
    assert ran.code == 1
    said = told(ran)
    assert said.count("Http404: ") == 10
    assert "… and 1 more: holdfast export show run-" in said
    [job] = place.stored()
    shown = place.cli("export", "show", job.job_id, "--failed", "--jobs", "out")
    assert told(shown).count("Http404: ") == 11
    assert "12 of 12 (100 %), 11 failed" in shown.out

    place.serve(*bad)
    again = place.run("urls.txt", "--json")
    assert again.code == 0, again.err
    assert "11 of 12 had failed; trying those again" in told(again)
    assert again.json["job"] == f"{job.job_id}.2"
    assert place.files() == place.whole("a.txt", *bad)
    assert place.asked("a.txt") == [1]

    third = place.run("urls.txt")
    assert third.code == 0
    assert "12 files: all done before" in third.err


# -- what is refused, before anything is fetched

REFUSED = {
    "../x": "cannot be used",
    "/etc/x": "cannot be used",
    "a\\b": "backslash",
    "a\x1b[31m": "control character",
    ".holdfast/jobs.db": "kept for half-done files",
    "a/": "begins or ends with",
}


@pytest.mark.parametrize(("name", "why"), REFUSED.items(), ids=ascii)
def test_a_name_that_leads_elsewhere_is_refused_with_its_line(
    cli: Cli, name: str, why: str
) -> None:
    hostile = json.dumps({"url": f"http://127.0.0.1:9/x?{CANARY}", "key": name})
    lines = f"http://127.0.0.1:9/ok\n\n{hostile}\n".encode()
    ran = cli("export", "run", "-", "--to", "out", stdin=lines)
    assert ran.code == 4
    assert "standard input: line 3: " in one_line(ran)
    assert why in told(ran)
    assert "\x1b" not in ran.err
    assert not (cli.folder / "out").exists()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("http://a/1\nnot a url\n", "line 2: this is no URL"),
        ('http://a/1\n{"url": \n', "line 2: the job: Invalid JSON"),
        ('{"url": "http://a/1"}\n{"key": "x"}\n', "line 2: url: Field required"),
        ("http://a/1\n\xff", "line 2: not UTF-8"),
        ('{"jobId": "a",\n "tasks": [}', "line 2: not JSON"),
        ('{"jobId": "a"}', 'no "tasks"'),
        ('{"jobId": "../a", "tasks": []}', "jobId"),
        ('{"tasks": [{"url": "http://a/b", "key": "../b"}]}', "task 1: the name"),
        ('{"tasks": [], "taskToken": "' + TOKEN + '"}', "has a task token"),
        ('{"url":"http://a/b","key":"x"}\n{"url":"http://a/c","key":"x"}', "line 2: two files"),
    ],
    ids=range(10),
)
def test_a_list_that_cannot_be_read_is_refused(cli: Cli, text: str, why: str) -> None:
    (cli.folder / "list").write_bytes(text.encode("latin-1"))
    ran = cli("export", "run", "list", "--to", "out")
    assert ran.code == 4, ran.err
    assert f"list: {why}" in one_line(ran) or why in one_line(ran)
    told(ran)


@pytest.mark.parametrize(
    ("to", "why"),
    [
        ("urls.txt", "this is a file"),
        ("gs://bucket/x", "no target for gs: URLs"),
        ("s3://", "the bucket is missing"),
        ("", "--to is empty"),
    ],
)
def test_a_target_that_can_be_none_is_refused(cli: Cli, to: str, why: str) -> None:
    (cli.folder / "urls.txt").write_text("http://127.0.0.1:9/x\n")
    ran = cli("export", "run", "urls.txt", "--to", to)
    assert ran.code == 2
    assert why in one_line(ran)


def test_a_job_id_stands_for_one_list_and_one_target(place: ExportCli) -> None:
    place.serve("a.txt", "b.txt")
    store = ("--jobs", "jobs.db")
    assert place.run(place.job("a.txt", jobId="j-1"), *store).code == 0
    elsewhere = place.run("job.json", *store, "--to", "elsewhere")
    assert elsewhere.code == 2
    assert "went to" in one_line(elsewhere)
    changed = place.run(place.job("a.txt", "b.txt", jobId="j-1"), *store)
    assert changed.code == 4
    assert "was made of another list" in one_line(changed)
    assert place.asked("a.txt", "b.txt") == [1, 0]


def test_without_pycurl_the_way_out_is_told(place: ExportCli) -> None:
    (place.folder / "none").mkdir()
    (place.folder / "none/pycurl.py").write_text("raise ImportError('no pycurl')")
    words = place.words("run", place.urls("a.txt"), "--to", "out")
    ran = real(place.folder, *words, env={"PYTHONPATH": str(place.folder / "none")})
    assert ran.code == 2
    assert "pip install 'holdfast[export]'" in ran.err


def test_nothing_is_left_open_in_any_process_of_a_run(place: ExportCli) -> None:
    """Development mode tells of sockets, files and pipes that nothing closed."""
    good = tuple(f"{number}.txt" for number in range(6))
    place.serve(*good, bad=("missing",))
    place.server.on("/moved", redirect(place.url("0.txt")))
    place.server.on("/cut", cut(b"abc", 1), file(b"abc"))
    place.urls(*good, "missing", "moved", "cut")
    with open(place.folder / "urls.txt", "a") as urls:
        urls.write("http://10.0.0.1/refused\n")
    strict = {"PYTHONDEVMODE": "1", "PYTHONWARNINGS": "always::ResourceWarning"}
    ran = ended(place.begin("run", "urls.txt", "--to", "out", **strict))
    assert ran.code == 1
    assert "8 of 10 done" in ran.out
    assert "ResourceWarning" not in ran.err
    eventually(lambda: place.server.open == 0)


# -- deaths and interruptions


def test_a_killed_command_goes_on_without_fetching_what_is_done(place: ExportCli) -> None:
    """JB-15, JB-16: SIGKILL half-way; nothing of it lives on, and nothing is done twice."""
    names = ("a.txt", "b.txt", "c.txt", "slow1", "slow2")
    place.serve(*names[:3], slow=names[3:])
    process = place.begin("run", place.urls(*names), "--to", "out")
    place.done(3)
    crew = eventually(lambda: workers_of(process.pid))
    process.kill()
    process.wait()
    eventually(lambda: not any(map(is_alive, crew)))
    assert place.files() == place.whole(*names[:3])

    place.open()
    ran = place.run("urls.txt")
    assert ran.code == 0, ran.err
    assert "going on: 3 of 5 are done" in told(ran)
    assert place.files() == place.whole(*names)
    assert place.asked(*names[:3]) == [1, 1, 1]


def test_a_killed_worker_is_replaced_and_its_files_are_fetched(place: ExportCli) -> None:
    """JB-28."""
    place.serve("a.txt", slow=("slow",))
    process = place.begin("run", place.urls("a.txt", "slow"), "--to", "out")
    place.done(1)
    eventually(lambda: place.asked("slow") == [1])
    [worker] = workers_of(process.pid)
    os.kill(worker, signal.SIGKILL)
    eventually(lambda: place.asked("slow") == [2])
    place.open()
    ran = ended(process)
    assert ran.code == 0, ran.err
    assert f"worker {worker} ended (SIGKILL)" in told(ran)
    assert place.files() == place.whole("a.txt", "slow")


def test_ctrl_c_lets_running_downloads_finish(place: ExportCli) -> None:
    names = tuple(f"slow{number}" for number in range(8))  # four at a time
    place.serve(slow=names)
    process = place.begin("run", place.urls(*names), "--to", "out", HOLDFAST_DRAIN_SECONDS="2")
    running = eventually(lambda: place.begun(*names) if sum(place.asked(*names)) >= 4 else ())
    process.send_signal(signal.SIGINT)
    await_line(process, b"draining: 4 running, up to 2.0 s")
    place.open(*running)  # what begins now, if anything, does not end in time
    ran = ended(process)
    assert ran.code == 130
    assert "interrupted: 4 of 8 done" in told(ran)
    assert "the same command goes on" in ran.err
    assert place.files() == place.whole(*running)

    place.open()
    again = place.run("urls.txt")
    assert again.code == 0
    assert "going on: 4 of 8 are done" in told(again)
    assert place.files() == place.whole(*names)
    assert place.asked(*running) == [1] * 4


def test_ctrl_c_twice_does_not_wait(place: ExportCli) -> None:
    place.serve("a.txt", slow=("slow",))
    process = place.begin("run", place.urls("a.txt", "slow"), "--to", "out", "--json")
    place.done(1)
    process.send_signal(signal.SIGINT)
    await_line(process, b"draining: 1 running")
    process.send_signal(signal.SIGINT)
    ran = ended(process)
    assert ran.code == 130
    assert "stopping now" in told(ran)
    assert ran.json["status"] == JobStatus.DOWNLOADING
    assert children(process.pid) == []


def test_a_job_that_rested_for_long_is_not_taken_for_stuck(
    place: ExportCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An hour without progress fails a job; one that nobody worked on only waited."""
    place.serve("a.txt", slow=("slow",))
    process = place.begin("run", place.urls("a.txt", "slow"), "--to", "out")
    place.done(1)
    process.kill()
    process.wait()
    with sqlite3.connect(place.folder / "out/.holdfast/jobs.db") as store:
        store.execute("UPDATE jobs SET last_progress_at = 1, updated_at = 1")
    store.close()
    place.open()
    monkeypatch.setenv("HOLDFAST_STALL_SECONDS", "60")
    ran = place.run("urls.txt")
    assert ran.code == 0, ran.err
    assert [job.status for job in place.stored()] == [JobStatus.COMPLETED]


# -- the view


def test_the_live_view_shows_names_cleaned_and_no_query(place: ExportCli) -> None:
    place.serve(slow=("slow",))
    entry = {"url": place.url("slow"), "key": "[red]big\u200b.bin"}
    (place.folder / "urls.txt").write_text(json.dumps(entry))
    ours, theirs = pty.openpty()
    process = start_on(theirs, place)
    try:
        seen = seen_on(ours, b"[red]big\\u200b.bin", b"0 of 1")
        place.open()
        seen += seen_on(ours)
        assert process.wait(PATIENCE_SECONDS) == 0
    finally:
        os.close(ours)
        process.kill()
        process.wait()
    assert b"Ctrl-C drains" in seen
    assert CANARY.encode() not in seen


def seen_on(terminal: int, *words: bytes) -> bytes:
    """What appears until all words did; without any, until the other side is closed."""
    seen, until = b"", time.monotonic() + PATIENCE_SECONDS
    while not words or not all(word in seen for word in words):
        readable, _, _ = select.select([terminal], [], [], until - time.monotonic())
        assert readable, f"it never appeared: {seen!r}"
        try:
            seen += os.read(terminal, 4096)
        except OSError:  # closed
            assert not words, f"it ended before that appeared: {seen!r}"
            break
    return seen


def start_on(terminal: int, place: ExportCli) -> "subprocess.Popen[bytes]":
    words = place.words("run", "urls.txt", "--to", "out")
    env = environment(**NO_AWS, COLUMNS="120", TERM="xterm")
    process = subprocess.Popen(
        command(*words),
        cwd=place.folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=terminal,
    )
    os.close(terminal)
    return process


# -- looking


def test_looking_makes_no_store(cli: Cli) -> None:
    for words in (["list"], ["show", "j"], ["list", "--jobs", "nosuch/jobs.db"]):
        ran = cli("export", *words)
        assert ran.code == 3
        assert "there is no job store" in one_line(ran)
    assert list(cli.folder.iterdir()) == []


def test_jobs_are_listed_with_masked_tokens_and_what_they_wait_for(cli: Cli) -> None:
    """R004-258…260, I-JB-13: who has a token, and who is DOWNLOADING."""
    from holdfast.bootstrap.exports import open_jobs
    from holdfast.jobs.model import ExportJob, ExportTask, JobError, TaskResult

    with open_jobs(cli.folder / "jobs.db") as jobs:
        jobs.save(ExportJob.create("listed", "e", "u", now=1.0))
        jobs.save(ExportJob.create("waiting", "e", "u", task_token=TOKEN, now=2.0))
        tasks = [ExportTask.of("waiting", f"http://a/{key}", key) for key in "abc"]
        jobs.add_tasks("waiting", tasks)
        jobs.update_job_status("waiting", JobStatus.DOWNLOADING)
        jobs.set_total_tasks("waiting", 3)
        error = JobError("Http404", "gone\x1b[31m")
        jobs.record_results(
            "waiting",
            [
                TaskResult("waiting", tasks[0].task_id, True, 5),
                TaskResult("waiting", tasks[1].task_id, False, 0, error),
            ],
        )
    store = ("--jobs", "jobs.db", "--json")
    everything = cli("export", "list", *store)
    told(everything)
    assert [job["job"] for job in everything.json] == ["listed", "waiting"]
    [active] = cli("export", "list", "--status", "downloading", "--with-token", *store).json
    assert active["percent"] == 33
    assert active["percent_processed"] == 67
    assert active["token"].startswith("token#")
    assert cli("export", "list", "--status", "COMPLETED", *store).json == []
    table = told(cli("export", "list", "--jobs", "jobs.db"))
    assert "waiting\tDOWNLOADING\t2 of 3 (67 %), 1 failed" in table
    story = cli("export", "show", "waiting", "--failed", "--jobs", "jobs.db")
    assert "callback       none" in told(story)
    assert "b  Http404: gone\\x1b[31m" in story.out
    shown = cli("export", "show", "waiting", "--failed", *store).json
    assert shown["failed_tasks"] == [
        {"name": "b", "error": {"code": "Http404", "message": "gone\x1b[31m"}}
    ]


def test_a_job_that_is_not_there_is_one_line_and_code_1(cli: Cli) -> None:
    from holdfast.bootstrap.exports import open_jobs

    open_jobs(cli.folder / "jobs.db").close()
    ran = cli("export", "show", "nosuch", "--jobs", "jobs.db")
    assert ran.code == 1
    assert "there is no job 'nosuch'" in one_line(ran)
    assert "PROCESSING" in one_line(cli("export", "list", "--status", "x", "--jobs", "jobs.db"))


# -- doctor and tables


def test_doctor_looks_at_settings_store_target_and_the_example_machine(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R004-209, R004-217, R004-257, R004-258."""
    from holdfast.bootstrap.exports import open_jobs

    open_jobs(cli.folder / "jobs.db").close()
    machine = Path(__file__).parents[2] / "examples/export/state-machine.json"
    words = ("export", "doctor", "--jobs", "jobs.db", "--to", "out", "--state-machine")
    ran = cli(*words, str(machine), "--json")
    assert ran.code == 0, ran.out
    levels = {finding["check"]: finding["level"] for finding in ran.json}
    assert levels == dict.fromkeys(
        [
            "heartbeats",
            "pycurl",
            "job store",
            "jobs",
            "target",
            "space",
            "heartbeat",
            "timeout",
            "retry",
        ],
        "ok",
    )
    assert not (cli.folder / "out").exists()

    monkeypatch.setenv("STEP_FUNCTIONS_HEARTBEAT_INTERVAL_MS", "45000")
    tight = cli(*words, str(machine))
    assert tight.code == 0
    assert "little room for a beat that is late" in tight.out
    monkeypatch.setenv("STEP_FUNCTIONS_HEARTBEAT_INTERVAL_MS", "45001")
    late = cli(*words, str(machine))
    assert late.code == 1
    assert "one late beat ends the job" in late.out
    monkeypatch.setenv("STEP_FUNCTIONS_HEARTBEAT_ENABLED", "FALSE")
    assert "are switched off" in cli(*words, str(machine)).out
    monkeypatch.setenv("STEP_FUNCTIONS_HEARTBEAT_ENABLED", "maybe")
    assert "STEP_FUNCTIONS_HEARTBEAT_ENABLED='maybe'" in cli(*words, str(machine)).out


def test_doctor_tells_of_a_wrong_interval_once_and_judges_nothing_by_the_default(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Path(__file__).parents[2] / "examples/export/state-machine.json"
    monkeypatch.setenv("STEP_FUNCTIONS_HEARTBEAT_INTERVAL_MS", "999")
    ran = cli(
        "export", "doctor", "--jobs", "jobs.db", "--state-machine", str(machine), "--json"
    )
    assert ran.code == 1
    about = [
        one for one in ran.json if "INTERVAL_MS" in one["found"] or "every" in one["found"]
    ]
    assert [(one["check"], one["level"]) for one in about] == [("settings", "fail")]
    assert "STEP_FUNCTIONS_HEARTBEAT_INTERVAL_MS=999" in about[0]["found"]


def test_doctor_finds_what_is_in_the_way(cli: Cli) -> None:
    (cli.folder / "jobs.db").write_text("not a database, and longer than its header" * 10)
    ran = cli("export", "doctor", "--jobs", "jobs.db", "--to", "jobs.db", "--json")
    assert ran.code == 1
    failed = {finding["check"] for finding in ran.json if finding["level"] == "fail"}
    assert failed == {"job store", "target"}
    ran = cli("export", "doctor", "--state-machine", "nosuch.json")
    assert ran.code == 1
    assert "nosuch.json cannot be read" in ran.out


def test_tables_are_looked_at_and_made(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """R004-201…203: the index that active jobs are found by."""
    import boto3
    from moto import mock_aws

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    assert cli("export", "tables").code == 2
    with mock_aws():
        words = ("export", "tables", "--jobs", "dynamodb:acme-")
        missing = cli(*words)
        assert missing.code == 1
        assert "acme-ExportJobs is not there" in missing.out
        made = cli(*words, "--create")
        assert made.code == 0, made.out
        assert "made acme-ExportTasks" in made.err
        assert "status-index: status, createdAt, keys only" in made.out
        assert cli(*words).code == 0
        client = boto3.client("dynamodb")
        client.update_table(
            TableName="acme-ExportJobs",
            GlobalSecondaryIndexUpdates=[{"Delete": {"IndexName": "status-index"}}],
        )
        gone = cli(*words)
        assert gone.code == 1
        assert "no active job is found" in gone.out
        assert cli("export", "doctor", "--jobs", "dynamodb:acme-").code in (0, 1)


# -- small things


@pytest.mark.parametrize(
    ("text", "count"), [("500", 500), ("10MB", 10_000_000), ("2GiB", 2 << 30), ("1.5k", 1500)]
)
def test_sizes_are_written_as_people_do(text: str, count: int) -> None:
    assert size(text) == count


@pytest.mark.parametrize("text", ["", "much", "-1", "0", "1 2"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        size(text)


def test_bytes_are_said_as_people_do() -> None:
    said = [in_bytes(count) for count in (0, 999, 1000, 999_960, 1_200_000, 5e15)]
    assert said == ["0 B", "999 B", "1.0 kB", "1.0 MB", "1.2 MB", "5,000.0 TB"]


def test_the_example_job_is_a_list_that_can_be_read() -> None:
    wanted = read_list(str(Path(__file__).parents[2] / "examples/export/job.json"))
    assert (wanted.request.job_id, len(wanted.specs)) == ("export-2026-07", 2)
