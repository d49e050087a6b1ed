"""`holdfast export run` and its neighbours: real processes, a real server, real kills.

JB-15, JB-16, JB-28 (going on after a death), JB-34 (names), JB-35, I-JB-13 (canaries).
"""

import json
import os
import re
import signal
import sqlite3
from collections.abc import Iterator

import pytest
import typer
from export_cli import (
    CANARY,
    TOKEN,
    ExportCli,
    list_children,
    list_workers,
    open_export_cli,
)
from export_place import cut
from moto import mock_aws

from holdfast.cli.arguments import parse_size
from holdfast.exports.commands.plan import read_list
from holdfast.exports.model import JobStatus
from holdfast.text import format_bytes
from support.cli.commands import (
    Cli,
    OnTerminal,
    Ran,
    log_contains,
    prepend_path,
    real,
    require_one_line,
    wait_for_end,
)
from support.http_server import file, redirect
from support.paths import ROOT
from support.waiting import WAIT_TIMEOUT_SECONDS, wait_until
from support.workers.notes import is_alive


@pytest.fixture
def place(cli: Cli) -> Iterator[ExportCli]:
    with open_export_cli(cli) as place:
        yield place


def check_output(ran: Ran) -> str:
    """Return the output, after checking that it holds no URL's query and no token."""
    assert CANARY not in ran.out + ran.err
    assert TOKEN not in ran.out + ran.err
    return ran.out + ran.err


# -- success


def test_a_list_is_fetched_once_however_often_the_command_runs(place: ExportCli) -> None:
    place.serve("a.txt", "b.txt")
    ran = place.run(place.write_urls("a.txt", "b.txt", "a.txt"))
    assert ran.code == 0, ran.err
    assert "COMPLETED: 2 of 2 done" in check_output(ran)
    assert place.read_files() == place.expect_files("a.txt", "b.txt")
    again = place.run("urls.txt")
    assert again.code == 0
    assert "all done before, nothing to do" in check_output(again)
    assert "delete the job store out/.holdfast/jobs.db" in again.err
    assert place.count_requests("a.txt", "b.txt") == [1, 1]


def test_a_list_may_come_on_standard_input_and_the_answer_as_json(place: ExportCli) -> None:
    place.serve("a.txt")
    named = json.dumps({"url": place.make_url("a.txt"), "key": "sub/ä.txt"})
    ran = place.run("-", "--json", stdin=f"# one\n{named}\n".encode())
    check_output(ran)
    assert ran.code == 0, ran.err
    [job] = place.read_jobs()
    assert ran.json["job"] == job.job_id
    assert (ran.json["status"], ran.json["completed"]) == ("COMPLETED", 1)
    assert ran.json["bytes"] == len(place.make_data("a.txt"))
    assert place.read_files() == {"sub/ä.txt": place.make_data("a.txt")}


# -- failures


def test_what_failed_is_named_and_tried_again_alone(place: ExportCli) -> None:
    bad = tuple(f"bad{number:02}" for number in range(11))
    place.serve("a.txt", bad=bad)
    ran = place.run(place.write_urls("a.txt", *bad))
    assert ran.code == 1
    output = check_output(ran)
    assert output.count("Http404: ") == 10
    assert "… and 1 more: holdfast export show run-" in output
    [job] = place.read_jobs()
    shown = place.cli("export", "show", job.job_id, "--failed", "--jobs", "out")
    assert check_output(shown).count("Http404: ") == 11
    assert "1 of 12 done (8 %), 11 failed" in shown.out
    assert [line.split()[0] for line in shown.out.splitlines() if "Http404" in line] == [*bad]
    assert [line.split()[0] for line in ran.err.splitlines() if "Http404" in line] == [
        *bad[:10]
    ]
    assert "callback       none, because no execution waits" in shown.out
    shortened = place.cli("export", "show", job.job_id[:8], "--jobs", "out", "--json")
    assert shortened.json["job"] == job.job_id

    place.serve(*bad)
    again = place.run("urls.txt", "--json")
    assert again.code == 0, again.err
    assert "11 of 12 had failed; retrying those" in check_output(again)
    assert again.json["job"] == f"{job.job_id}.2"
    assert place.read_files() == place.expect_files("a.txt", *bad)
    assert place.count_requests("a.txt") == [1]

    third = place.run("urls.txt")
    assert third.code == 0
    assert "12 files: all done before" in third.err


# -- refusals, before any file is fetched

REFUSED = {
    "../x": "cannot be used",
    "/etc/x": "cannot be used",
    "a\\b": "backslash",
    "a\x1b[31m": "control character",
    ".holdfast/jobs.db": "reserved for partial files",
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
    assert "standard input: line 3: " in require_one_line(ran)
    assert why in check_output(ran)
    assert "\x1b" not in ran.err
    assert not (cli.folder / "out").exists()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("http://a/1\nnot a url\n", "line 2: the address is not a URL"),
        ("http://a/1\n\nftp://a/2\n", "line 3: files are downloaded by http or https, not by"),
        ("# nothing today\n", "it names no files"),
        ('{"jobId": "a", "tasks": []}', "it names no files"),
        ('{"tasks": [{"url": "http://a/1"}, {"url": "ftp://a/b"}]}', "task 2: files are"),
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
    ids=range(14),
)
def test_a_list_that_cannot_be_read_is_refused(cli: Cli, text: str, why: str) -> None:
    (cli.folder / "list").write_bytes(text.encode("latin-1"))
    ran = cli("export", "run", "list", "--to", "out")
    assert ran.code == 4, ran.err
    assert f"list: {why}" in require_one_line(ran) or why in require_one_line(ran)
    check_output(ran)


@pytest.mark.parametrize(
    ("to", "why"),
    [
        ("urls.txt", "this is a file"),
        ("gs://bucket/x", "no target for gs: URLs; use a folder, or s3:"),
        ("s3://", "the bucket is missing"),
        ("", "--to is empty"),
    ],
)
def test_a_target_that_is_impossible_is_refused(cli: Cli, to: str, why: str) -> None:
    (cli.folder / "urls.txt").write_text("http://127.0.0.1:9/x\n")
    ran = cli("export", "run", "urls.txt", "--to", to)
    assert ran.code == 2
    assert why in require_one_line(ran)


def test_a_list_that_does_not_exist_is_a_wrong_argument(cli: Cli) -> None:
    ran = cli("export", "run", "nope.txt", "--to", "out")
    assert ran.code == 2
    assert "cannot read 'nope.txt': No such file or directory" in require_one_line(ran)
    assert "QUEUE" not in ran.err


def test_a_missing_bucket_is_reported_before_a_file_is_fetched(
    place: ExportCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    place.serve("a.txt")
    with mock_aws():
        ran = place.run(place.write_urls("a.txt"), "--to", "s3://no-such-bucket/x")
    assert ran.code == 3
    assert "s3://no-such-bucket/x cannot be written to (NoSuchBucket)" in require_one_line(ran)
    assert place.count_requests("a.txt") == [0]


def test_a_refused_private_address_says_how_to_allow_it(place: ExportCli) -> None:
    place.serve("a.txt")
    words = ("export", "run", place.write_urls("a.txt"), "--to", "out", "--workers", "1")
    ran = place.cli(*words)
    assert ran.code == 1
    [allow] = re.findall(r"--allow-host \S+", ran.err)
    assert allow == f"--allow-host 127.0.0.1:{place.server.port}"
    assert place.cli(*words, *allow.split()).code == 0


def test_a_job_id_stands_for_one_list_and_one_target(place: ExportCli) -> None:
    place.serve("a.txt", "b.txt")
    store = ("--jobs", "jobs.db")
    assert place.run(place.write_job("a.txt", jobId="j-1"), *store).code == 0
    elsewhere = place.run("job.json", *store, "--to", "elsewhere")
    assert elsewhere.code == 2
    assert "exports to" in require_one_line(elsewhere)
    changed = place.run(place.write_job("a.txt", "b.txt", jobId="j-1"), *store)
    assert changed.code == 4
    assert "has another list" in require_one_line(changed)
    assert place.count_requests("a.txt", "b.txt") == [1, 0]


def test_without_pycurl_the_error_says_what_to_install(place: ExportCli) -> None:
    (place.folder / "none").mkdir()
    (place.folder / "none/pycurl.py").write_text("raise ImportError('no pycurl')")
    words = place.make_arguments("run", place.write_urls("a.txt"), "--to", "out")
    ran = real(place.folder, *words, env={"PYTHONPATH": prepend_path(place.folder / "none")})
    assert ran.code == 2
    assert "pip install '.[export]'" in require_one_line(ran)


def test_nothing_is_left_open_in_any_process_of_a_run(place: ExportCli) -> None:
    """Development mode tells of sockets, files and pipes that nothing closed."""
    good = tuple(f"{number}.txt" for number in range(6))
    place.serve(*good, bad=("missing",))
    place.server.on("/moved", redirect(place.make_url("0.txt")))
    place.server.on("/cut", cut(b"abc", 1), file(b"abc"))
    place.write_urls(*good, "missing", "moved", "cut")
    with open(place.folder / "urls.txt", "a") as urls:
        urls.write("http://10.0.0.1/refused\n")
    strict = {"PYTHONDEVMODE": "1", "PYTHONWARNINGS": "always::ResourceWarning"}
    ran = wait_for_end(place.start("run", "urls.txt", "--to", "out", **strict))
    assert ran.code == 1
    assert "8 of 10 done" in ran.out
    assert "ResourceWarning" not in ran.err
    wait_until(lambda: place.server.open == 0)


# -- kills and interruptions


def test_a_killed_command_continues_without_fetching_finished_files_again(
    place: ExportCli,
) -> None:
    """SIGKILL half-way leaves no process behind, and nothing is done twice (JB-15, JB-16)."""
    names = ("a.txt", "b.txt", "c.txt", "slow1", "slow2")
    place.serve(*names[:3], slow=names[3:])
    process = place.start("run", place.write_urls(*names), "--to", "out")
    place.wait_for_tasks(3)
    crew = wait_until(lambda: list_workers(process.pid))
    process.kill()
    process.wait()
    wait_until(lambda: not any(map(is_alive, crew)))
    assert place.read_files() == place.expect_files(*names[:3])

    place.open()
    ran = place.run("urls.txt")
    assert ran.code == 0, ran.err
    assert "continuing: 3 of 5 are done" in check_output(ran)
    assert place.read_files() == place.expect_files(*names)
    assert place.count_requests(*names[:3]) == [1, 1, 1]


def test_a_killed_worker_is_replaced_and_its_files_are_fetched(place: ExportCli) -> None:
    """The pool replaces a killed worker (JB-28)."""
    place.serve("a.txt", slow=("slow",))
    process = place.start("run", place.write_urls("a.txt", "slow"), "--to", "out")
    place.wait_for_tasks(1)
    wait_until(lambda: place.count_requests("slow") == [1])
    [worker] = list_workers(process.pid)
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: place.count_requests("slow") == [2])
    place.open()
    ran = wait_for_end(process)
    assert ran.code == 0, ran.err
    assert f"worker {worker} ended (SIGKILL)" in check_output(ran)
    assert place.read_files() == place.expect_files("a.txt", "slow")


def test_ctrl_c_lets_running_downloads_finish(place: ExportCli) -> None:
    names = tuple(f"slow{number}" for number in range(8))  # four at a time
    place.serve(slow=names)
    process = place.start(
        "run", place.write_urls(*names), "--to", "out", HOLDFAST_DRAIN_SECONDS="2"
    )
    running = wait_until(
        lambda: (
            sum(place.count_requests(*names)) >= 4
            and [name for name in names if place.server.asked(f"/{name}")]
        )
    )
    process.send_signal(signal.SIGINT)
    assert log_contains(process, b"draining: 4 running, up to 2.0 s")
    place.open(*running)  # a download that starts now does not end in time
    ran = wait_for_end(process)
    assert ran.code == 130
    assert "interrupted: 4 of 8 done" in check_output(ran)
    assert "run the same command again to continue" in ran.err
    assert place.read_files() == place.expect_files(*running)

    place.open()
    again = place.run("urls.txt")
    assert again.code == 0
    assert "continuing: 4 of 8 are done" in check_output(again)
    assert place.read_files() == place.expect_files(*names)
    assert place.count_requests(*running) == [1] * 4


def test_ctrl_c_twice_does_not_wait(place: ExportCli) -> None:
    place.serve("a.txt", slow=("slow",))
    process = place.start("run", place.write_urls("a.txt", "slow"), "--to", "out", "--json")
    place.wait_for_tasks(1)
    process.send_signal(signal.SIGINT)
    assert log_contains(process, b"draining: 1 running")
    process.send_signal(signal.SIGINT)
    ran = wait_for_end(process)
    assert ran.code == 130
    assert "stopping now" in check_output(ran)
    assert ran.json["status"] == JobStatus.DOWNLOADING
    assert list_children(process.pid) == []


def test_a_job_that_paused_for_long_is_not_stalled(
    place: ExportCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An hour without progress fails a running job, but this one was only waiting."""
    place.serve("a.txt", slow=("slow",))
    process = place.start("run", place.write_urls("a.txt", "slow"), "--to", "out")
    place.wait_for_tasks(1)
    process.kill()
    process.wait()
    with sqlite3.connect(place.folder / "out/.holdfast/jobs.db") as store:
        store.execute("UPDATE jobs SET last_progress_at = 1, updated_at = 1")
    store.close()
    place.open()
    monkeypatch.setenv("HOLDFAST_STALL_SECONDS", "60")
    ran = place.run("urls.txt")
    assert ran.code == 0, ran.err
    assert [job.status for job in place.read_jobs()] == [JobStatus.COMPLETED]


# -- the live view


def test_the_live_view_shows_names_cleaned_and_no_query(place: ExportCli) -> None:
    place.serve(slow=("slow",))
    entry = {"url": place.make_url("slow"), "key": "[red]big\u200b.bin"}
    (place.folder / "urls.txt").write_text(json.dumps(entry))
    words = place.make_arguments("run", "urls.txt", "--to", "out")
    terminal = OnTerminal(place.folder, *words)
    try:
        terminal.read(b"[red]big\\u200b.bin", b"0 of 1")
        place.open()
        seen = terminal.read()
        assert terminal.process.wait(WAIT_TIMEOUT_SECONDS) == 0
    finally:
        terminal.process.kill()
        terminal.process.communicate()
    assert b"Ctrl-C drains" in seen
    assert CANARY.encode() not in seen


# -- read-only commands


def test_read_only_export_commands_never_create_the_store(cli: Cli) -> None:
    for words in (["list"], ["show", "j"], ["list", "--jobs", "nosuch/jobs.db"]):
        ran = cli("export", *words)
        assert ran.code == 3
        assert "there is no job store" in require_one_line(ran)
    assert list(cli.folder.iterdir()) == []


@pytest.mark.requirement("R004-168", "R004-258", "R004-259", "R004-260")
def test_jobs_are_listed_with_masked_tokens_and_what_they_wait_for(cli: Cli) -> None:
    """Which jobs have a token, and which are DOWNLOADING."""
    from holdfast.exports.building import open_jobs
    from holdfast.exports.model import ExportJob, ExportTask, JobError, TaskResult

    with open_jobs(cli.folder / "jobs.db") as jobs:
        jobs.save(ExportJob.create("listed", "e", "u", now=1.0))
        jobs.save(ExportJob.create("waiting", "e", "u", task_token=TOKEN, now=2.0))
        tasks = [ExportTask.create("waiting", f"http://a/{key}", key) for key in "abc"]
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
    check_output(everything)
    assert [job["job"] for job in everything.json] == ["listed", "waiting"]
    [active] = cli("export", "list", "--status", "downloading", *store).json
    assert cli("export", "list", "--with-token", *store).json == [active]
    assert active["percent"] == 33
    assert active["percent_processed"] == 67
    assert active["token"].startswith("token#")
    assert cli("export", "list", "--status", "COMPLETED", *store).json == []
    table = check_output(cli("export", "list", "--jobs", "jobs.db"))
    assert "waiting\tDOWNLOADING\t1 of 3 done (33 %), 1 failed" in table
    story = cli("export", "show", "waiting", "--failed", "--jobs", "jobs.db")
    assert "callback       none" in check_output(story)
    assert "b  Http404: gone\\x1b[31m" in story.out
    shown = cli("export", "show", "waiting", "--failed", *store).json
    assert shown["failed_tasks"] == [
        {"name": "b", "error": {"code": "Http404", "message": "gone\x1b[31m"}}
    ]


def test_a_job_that_is_not_there_is_one_line_and_code_1(cli: Cli) -> None:
    from holdfast.exports.building import open_jobs

    open_jobs(cli.folder / "jobs.db").close()
    ran = cli("export", "show", "nosuch", "--jobs", "jobs.db")
    assert ran.code == 1
    assert "there is no job 'nosuch'" in require_one_line(ran)
    assert "PROCESSING" in require_one_line(
        cli("export", "list", "--status", "x", "--jobs", "jobs.db")
    )


# -- doctor and tables


@pytest.mark.requirement("R004-209", "R004-217", "R004-257", "R004-258", "R004-264")
def test_doctor_checks_settings_store_target_and_the_example_machine(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.exports.building import open_jobs

    open_jobs(cli.folder / "jobs.db").close()
    machine = ROOT / "examples/export/state-machine.json"
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
    assert "they are off" in cli(*words, str(machine)).out
    monkeypatch.setenv("STEP_FUNCTIONS_HEARTBEAT_ENABLED", "maybe")
    assert "STEP_FUNCTIONS_HEARTBEAT_ENABLED='maybe'" in cli(*words, str(machine)).out


def test_doctor_reports_a_wrong_interval_once_and_does_not_use_the_default_instead(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = ROOT / "examples/export/state-machine.json"
    monkeypatch.setenv("STEP_FUNCTIONS_HEARTBEAT_INTERVAL_MS", "999")
    ran = cli(
        "export", "doctor", "--jobs", "jobs.db", "--state-machine", str(machine), "--json"
    )
    assert ran.code == 1
    about = [
        result
        for result in ran.json
        if "INTERVAL_MS" in result["found"] or "every" in result["found"]
    ]
    assert [(result["check"], result["level"]) for result in about] == [("settings", "fail")]
    assert "STEP_FUNCTIONS_HEARTBEAT_INTERVAL_MS='999'" in about[0]["found"]


def test_doctor_finds_an_unusable_target(cli: Cli) -> None:
    (cli.folder / "jobs.db").write_text("not a database, and longer than its header" * 10)
    ran = cli("export", "doctor", "--jobs", "jobs.db", "--to", "jobs.db", "--json")
    assert ran.code == 1
    failed = {finding["check"] for finding in ran.json if finding["level"] == "fail"}
    assert failed == {"job store", "target"}
    ran = cli("export", "doctor", "--state-machine", "nosuch.json")
    assert ran.code == 1
    assert "nosuch.json cannot be read" in ran.out


@pytest.mark.requirement("R004-066", "R004-201", "R004-202", "R004-203")
def test_tables_are_checked_and_created(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index that active jobs are found by."""
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
        assert "acme-ExportJobs does not exist" in missing.out
        created = cli(*words, "--create")
        assert created.code == 0, created.out
        assert "created acme-ExportTasks" in created.err
        assert "status-index: status, createdAt, keys only" in created.out
        assert cli(*words).code == 0
        client = boto3.client("dynamodb")
        client.update_table(
            TableName="acme-ExportJobs",
            GlobalSecondaryIndexUpdates=[{"Delete": {"IndexName": "status-index"}}],
        )
        gone = cli(*words)
        assert gone.code == 1
        assert "active jobs are not found" in gone.out
        assert cli("export", "doctor", "--jobs", "dynamodb:acme-").code in (0, 1)


# -- parsing and formatting


@pytest.mark.parametrize(
    ("text", "count"), [("500", 500), ("10MB", 10_000_000), ("2GiB", 2 << 30), ("1.5k", 1500)]
)
def test_sizes_are_parsed_with_their_units(text: str, count: int) -> None:
    assert parse_size(text) == count


@pytest.mark.parametrize("text", ["", "much", "-1", "0", "1 2"])
def test_text_that_is_not_a_size_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_size(text)


def test_bytes_are_formatted_readably() -> None:
    texts = [format_bytes(count) for count in (0, 999, 1000, 999_960, 1_200_000, 5e15)]
    assert texts == ["0 B", "999 B", "1.0 kB", "1.0 MB", "1.2 MB", "5,000.0 TB"]


def test_the_example_job_is_a_list_that_can_be_read() -> None:
    wanted = read_list(str(ROOT / "examples/export/job.json"))
    assert (wanted.request.job_id, len(wanted.request.tasks or ())) == ("export-2026-07", 2)
