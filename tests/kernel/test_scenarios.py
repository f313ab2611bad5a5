"""The scenarios of the five seeds, played. What each expects is written in it (`scenarios.py`)."""

import pytest

from .scenarios import PROGRAMS


@pytest.mark.parametrize("name", PROGRAMS)
def test_scenario(name: str) -> None:
    run = PROGRAMS[name]()
    assert run.status in ("succeeded", "failed", "canceled")


def test_every_seed_has_its_scenarios() -> None:
    by_seed = {
        "000": ["invoice", "compensation_required"],
        "001": ["protocol_with_callbacks", "protocol_cancelled_while_processing"],
        "002": ["run_fail_fast", "run_continue", "run_retry", "run_replanned"],
        "003": [
            "order_cancelled_payment_done",
            "order_cancelled_payment_not_done",
            "order_cancelled_payment_unknown",
        ],
        "004": [
            "saga_strict_sequential",
            "saga_grouped_parallel",
            "saga_retry_with_backoff",
            "saga_circuit_breaker",
            "saga_best_effort",
        ],
    }
    assert {name for names in by_seed.values() for name in names} <= set(PROGRAMS)
