"""`require`, for what only the simulation can see. What any history must obey is in `tenuto.checker`."""

from tenuto.kernel.definition import ErrorClass

from .trace import Violation

HONOURS_RETRY_AFTER: tuple[ErrorClass, ...] = ("RATE_LIMITED", "DEPENDENCY_FAILED")


def require(condition: object, law: str, detail: object) -> None:
    if not condition:
        raise Violation(law, str(detail))
