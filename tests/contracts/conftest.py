import pytest

# The suites are ordinary modules, not test files: without this their asserts say nothing.
pytest.register_assert_rewrite(
    "queue_contract",
    "queue_promises",
    "job_repository_contract",
    "job_promises",
    "conversation_promises",
)
