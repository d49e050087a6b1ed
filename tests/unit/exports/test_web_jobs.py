"""The pages of jobs: progress, pace, failed tasks, and a store that cannot be read."""

from dataclasses import replace
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from holdfast.exports.columns import compute_left_seconds
from holdfast.exports.model import ExportJob, JobState, JobStatus
from holdfast.exports.pages import describe_heartbeats
from holdfast.web import web_app
from support.web.jobs import EVIL, TOKEN, fill_jobs
from support.web.pages import read_page

HOST = "http://127.0.0.1"


def open_console(store: Path) -> TestClient:
    return TestClient(web_app([], jobs=str(store)), base_url=HOST)


def test_jobs_are_listed_with_their_progress(tmp_path: Path) -> None:
    fill_jobs(tmp_path / "jobs.db")
    page = read_page(open_console(tmp_path / "jobs.db"), "/jobs")
    assert "job-1" in page
    assert "1 of 4 done (25 %), 1 failed" in page
    assert 'max="4" value="2"' in page


def test_a_job_is_shown_with_its_failed_tasks_and_without_its_token(tmp_path: Path) -> None:
    fill_jobs(tmp_path / "jobs.db")
    page = open_console(tmp_path / "jobs.db").get("/jobs/job?id=job-1").text
    assert "404 &lt;script&gt;" in page
    assert EVIL not in page
    assert "token#" in page
    assert TOKEN not in page
    assert open_console(tmp_path / "jobs.db").get("/jobs/job?id=none").status_code == 404


def test_a_missing_store_is_reported_and_not_created(tmp_path: Path) -> None:
    store = tmp_path / "none.db"
    assert "there is no job store" in read_page(open_console(store), "/jobs")
    assert not store.exists()


def test_a_console_without_a_store_has_no_page_of_jobs() -> None:
    client = TestClient(web_app([]), base_url=HOST)
    assert client.get("/jobs").status_code == 404
    assert "Jobs" not in client.get("/").text


@pytest.mark.parametrize(
    ("done", "took", "left"),
    [(0, 60, None), (30, 60, 140.0), (100, 60, 0.0), (30, 0, None)],
)
def test_the_time_left_follows_from_the_pace(
    done: int, took: float, left: float | None
) -> None:
    job = ExportJob(
        "j",
        "e",
        "u",
        JobState(JobStatus.DOWNLOADING, 100, done),
        sealed=True,
        remaining_tasks=100 - done,
        created_at=1000.0,
        last_progress_at=1000.0 + took,
    )
    assert compute_left_seconds(job) == left


def test_a_job_says_whether_heartbeats_are_sent_and_how_its_callback_is(tmp_path: Path) -> None:
    fill_jobs(tmp_path / "jobs.db")
    page = open_console(tmp_path / "jobs.db").get("/jobs/job?id=job-1").text
    assert "sent by the service while the job makes progress" in page
    assert "<dt>Callback</dt><dd>none" in page
    job = ExportJob("j", "e", "u")
    assert describe_heartbeats(job) == "none: no execution of Step Functions waits"
    ended = replace(job, state=JobState(JobStatus.COMPLETED))
    assert describe_heartbeats(ended) == "ended with the job"
