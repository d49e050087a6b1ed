"""A store with a job that has failed tasks and hostile texts."""

from pathlib import Path

from holdfast import open_jobs
from holdfast.exports.model import ExportJob, ExportTask, JobError, JobStatus, TaskResult

EVIL = "<script>alert(1)</script>"
TOKEN = "secret-token-of-step-functions"


def fill_jobs(store: Path) -> None:
    """Store a job with two tasks, one of which failed."""
    with open_jobs(store) as jobs:
        jobs.save(ExportJob.create("job-1", "export", "user", task_token=TOKEN, now=1.0))
        tasks = [ExportTask.create("job-1", f"http://a/{n}", f"{EVIL}{n}") for n in range(4)]
        jobs.add_tasks("job-1", tasks)
        jobs.update_job_status("job-1", JobStatus.DOWNLOADING)
        jobs.set_total_tasks("job-1", 4)
        error = JobError("NotFound", f"404 {EVIL}")
        results = [TaskResult("job-1", tasks[0].task_id, True)]
        results += [TaskResult("job-1", tasks[1].task_id, False, error=error)]
        jobs.record_results("job-1", results)
