"""The model of the scale study does what a real worker does, compared in real time.

Only under `make chaos`, alone: on a busy machine a real worker is late, and the model is not.
"""

import pytest
from bench.scale.validating import (
    OUTAGE,
    agree,
    plan_arrivals,
    plan_outage,
    run_model,
    run_real,
)

pytestmark = pytest.mark.nightly
MAX_RUNS = 3  # in real time, so other tests on the machine may disturb one


@pytest.mark.parametrize(("messages", "per_second"), [(300, 30.0), (500, 100.0)])
def test_the_model_makes_as_many_calls_as_a_real_worker(
    messages: int, per_second: float
) -> None:
    differing = []
    for _ in range(MAX_RUNS):
        real = run_real(plan_arrivals(messages, per_second))
        model = run_model(real)
        if all(agree(real, model).values()):
            return
        differing.append((real.calls, model, real.delay_seconds))
    raise AssertionError(differing)


def test_the_model_repeats_as_much_work_as_a_real_worker_when_sqs_is_down() -> None:
    real = run_real(plan_outage(), OUTAGE)
    model = run_model(real, OUTAGE)
    assert real.calls["attempts"] == model["attempts"] > len(real.arrivals)
