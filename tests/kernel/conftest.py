import pytest

pytest.register_assert_rewrite("tests.kernel.driver", "tests.kernel.laws")
