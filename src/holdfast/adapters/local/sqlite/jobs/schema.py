"""The tables of jobs and tasks."""

from holdfast.adapters.local.sqlite.schema import Schema

# Tasks refer to their job by number. No number is used twice, so a remaining task of a deleted
# job can never be taken for a task of a later job with the same id. Tasks are stored in the
# order of their ids, which is also the order of the work. Results that arrive together are
# therefore written to neighbouring pages, however many tasks there are.
JOBS = Schema(
    name="job store",
    content="jobs",
    version=1,
    tables="""
CREATE TABLE jobs (
    job_no INTEGER PRIMARY KEY AUTOINCREMENT,
    job_id TEXT NOT NULL UNIQUE,
    export_id TEXT NOT NULL,
    user_id TEXT NOT NULL,
    status TEXT NOT NULL,
    total_tasks INTEGER NOT NULL,
    completed_tasks INTEGER NOT NULL,
    failed_tasks INTEGER NOT NULL,
    task_token TEXT,
    token_generation INTEGER NOT NULL,
    seen_tokens TEXT NOT NULL,
    sealed INTEGER NOT NULL,
    remaining_tasks INTEGER NOT NULL,
    callback_state TEXT NOT NULL,
    callback_status TEXT NOT NULL,
    callback_error_code TEXT,
    callback_error_message TEXT,
    callback_attempts INTEGER NOT NULL,
    callback_in_doubt INTEGER NOT NULL,
    callback_attempted_at REAL,
    error_code TEXT,
    error_message TEXT,
    metadata TEXT NOT NULL,
    created_at REAL NOT NULL,
    updated_at REAL NOT NULL,
    last_progress_at REAL NOT NULL,
    completed_at REAL,
    ttl INTEGER
);
CREATE INDEX jobs_by_status ON jobs (status, created_at);
CREATE INDEX jobs_by_ttl ON jobs (ttl) WHERE ttl IS NOT NULL;
CREATE TABLE tasks (
    job_no INTEGER NOT NULL,
    task_id TEXT NOT NULL,
    url TEXT NOT NULL,
    key TEXT NOT NULL,
    checksum TEXT,
    size INTEGER,
    status TEXT NOT NULL,
    bytes_processed INTEGER NOT NULL,
    error_code TEXT,
    error_message TEXT,
    PRIMARY KEY (job_no, task_id)
) WITHOUT ROWID;
CREATE TABLE forgotten (job_no INTEGER PRIMARY KEY);
""",
)
