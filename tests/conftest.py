"""For all tests: properties are checked on the same examples everywhere, and no time is asserted."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "tenuto", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], database=None
)
settings.load_profile("tenuto")
