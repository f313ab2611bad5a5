"""For all tests: properties are checked on the same examples everywhere, and no time is asserted."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.servers import postgres

# Before anybody imports them: tests of the checker and of snapshots drive the kernel, too.
pytest.register_assert_rewrite("tests.kernel.driver", "tests.kernel.laws")

settings.register_profile(
    "tenuto", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], database=None
)
settings.load_profile("tenuto")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[postgres.Server]:
    """One server for each process that runs tests, started when the first of them asks."""
    with postgres.running() as server:
        yield server
