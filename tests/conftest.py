"""For all tests: properties are checked on the same examples everywhere, and no time is asserted."""

import pytest
from hypothesis import HealthCheck, settings

# Before anybody imports them: tests of the checker and of snapshots drive the kernel, too.
pytest.register_assert_rewrite("tests.kernel.driver", "tests.kernel.laws")

settings.register_profile(
    "tenuto", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], database=None
)
settings.load_profile("tenuto")
