"""Results of executions: `SagaResult` with its steps and its report, and the progress of a batch."""

from .progress import Progress
from .saga import SagaReport, SagaResult
from .steps import StepResult, Steps

__all__ = ["Progress", "SagaReport", "SagaResult", "StepResult", "Steps"]
