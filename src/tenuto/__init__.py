"""Tenuto: a durable orchestration engine for Python."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tenuto.authoring.builder import SagaBuilder
    from tenuto.authoring.decorators import (
        Saga,
        approval,
        compensation_step,
        external_step,
        group,
        handler,
        saga,
        signal,
        step,
        wait,
    )
    from tenuto.authoring.markers import (
        ExpandEach,
        FromCompensationError,
        FromCompensationResult,
        FromStep,
        Header,
        Headers,
        Input,
        Required,
        Result,
        StepInputs,
        Variable,
        Variables,
    )
    from tenuto.authoring.settings import Retry
    from tenuto.batch import Batch
    from tenuto.context import SagaContext
    from tenuto.engine import Engine
    from tenuto.errors import TenutoError
    from tenuto.handle import Handle
    from tenuto.handlers.http import HttpCall
    from tenuto.messages import Message
    from tenuto.observation import EventContext, SagaEvents
    from tenuto.outcome import Done, NotDone, Outcome, Pending, Unknown
    from tenuto.results import Progress, SagaReport, SagaResult, StepResult

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "Done",
    "Engine",
    "EventContext",
    "ExpandEach",
    "FromCompensationError",
    "FromCompensationResult",
    "FromStep",
    "Handle",
    "Header",
    "Headers",
    "HttpCall",
    "Input",
    "Message",
    "NotDone",
    "Outcome",
    "Pending",
    "Progress",
    "Required",
    "Result",
    "Retry",
    "Saga",
    "SagaBuilder",
    "SagaContext",
    "SagaEvents",
    "SagaReport",
    "SagaResult",
    "StepInputs",
    "StepResult",
    "TenutoError",
    "Unknown",
    "Variable",
    "Variables",
    "approval",
    "compensation_step",
    "external_step",
    "group",
    "handler",
    "saga",
    "signal",
    "step",
    "wait",
]

# Each public name and its home. Loaded on first use, so that `import tenuto.kernel` loads no driver and no framework.
_HOMES = {
    "SagaBuilder": "tenuto.authoring.builder",
    "Saga": "tenuto.authoring.decorators",
    "approval": "tenuto.authoring.decorators",
    "compensation_step": "tenuto.authoring.decorators",
    "external_step": "tenuto.authoring.decorators",
    "group": "tenuto.authoring.decorators",
    "handler": "tenuto.authoring.decorators",
    "saga": "tenuto.authoring.decorators",
    "signal": "tenuto.authoring.decorators",
    "step": "tenuto.authoring.decorators",
    "wait": "tenuto.authoring.decorators",
    "ExpandEach": "tenuto.authoring.markers",
    "FromCompensationError": "tenuto.authoring.markers",
    "FromCompensationResult": "tenuto.authoring.markers",
    "FromStep": "tenuto.authoring.markers",
    "Header": "tenuto.authoring.markers",
    "Headers": "tenuto.authoring.markers",
    "Input": "tenuto.authoring.markers",
    "Required": "tenuto.authoring.markers",
    "Result": "tenuto.authoring.markers",
    "StepInputs": "tenuto.authoring.markers",
    "Variable": "tenuto.authoring.markers",
    "Variables": "tenuto.authoring.markers",
    "Retry": "tenuto.authoring.settings",
    "SagaContext": "tenuto.context",
    "Engine": "tenuto.engine",
    "TenutoError": "tenuto.errors",
    "Batch": "tenuto.batch",
    "Handle": "tenuto.handle",
    "HttpCall": "tenuto.handlers.http",
    "Message": "tenuto.messages",
    "EventContext": "tenuto.observation",
    "SagaEvents": "tenuto.observation",
    "Done": "tenuto.outcome",
    "NotDone": "tenuto.outcome",
    "Outcome": "tenuto.outcome",
    "Pending": "tenuto.outcome",
    "Unknown": "tenuto.outcome",
    "Progress": "tenuto.results",
    "SagaReport": "tenuto.results",
    "SagaResult": "tenuto.results",
    "StepResult": "tenuto.results",
}

# Hidden from type checkers, which would otherwise believe that every name exists.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module 'tenuto' has no attribute {name!r}")
        value = getattr(import_module(home), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
