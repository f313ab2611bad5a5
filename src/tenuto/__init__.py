"""Tenuto: a durable orchestration engine for Python."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .api.batch import Batch
    from .api.engine import Engine
    from .api.event_sinks import EventContext, SagaEvents
    from .api.handle import Handle
    from .authoring.builder import SagaBuilder
    from .authoring.context import SagaContext
    from .authoring.decorators import (
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
    from .authoring.markers import (
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
    from .authoring.outcome import Done, NotDone, Outcome, Pending, Unknown
    from .authoring.settings import Retry
    from .errors import TenutoError
    from .handlers.http import HttpCall
    from .views.messages import Message
    from .views.results import Progress, SagaReport, SagaResult, StepResult

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
    "SagaContext": "tenuto.authoring.context",
    "Engine": "tenuto.api.engine",
    "TenutoError": "tenuto.errors",
    "Batch": "tenuto.api.batch",
    "Handle": "tenuto.api.handle",
    "HttpCall": "tenuto.handlers.http",
    "Message": "tenuto.views.messages",
    "EventContext": "tenuto.api.event_sinks",
    "SagaEvents": "tenuto.api.event_sinks",
    "Done": "tenuto.authoring.outcome",
    "NotDone": "tenuto.authoring.outcome",
    "Outcome": "tenuto.authoring.outcome",
    "Pending": "tenuto.authoring.outcome",
    "Unknown": "tenuto.authoring.outcome",
    "Progress": "tenuto.views.results",
    "SagaReport": "tenuto.views.results",
    "SagaResult": "tenuto.views.results",
    "StepResult": "tenuto.views.results",
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
