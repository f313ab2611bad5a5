"""What people and programs see of an execution: its status, why it is blocked, its steps, its attempts.

Pure functions over state and history, in the words of the HTTP surface. What only the runtime knows (which of the
granted attempts run, and what the others wait for) comes as an `Activity`.
"""

from .attempts import attempt_rows
from .blocking import blocked
from .events import EventDocument, entry_of, event_document
from .execution import Until, execution_document, finished_at, has_reached, is_settled, phase, stored_output
from .finding import find_path, leaf_nodes, path_of, result_of, result_seqs
from .shapes import (
    NOTHING_UNDER_WAY,
    Activity,
    AttemptRow,
    AuditDocument,
    AuditRecord,
    Blocked,
    CloneDocument,
    DeadLetterRow,
    ErrorDocument,
    ExecutionDocument,
    ExecutionSummary,
    LimitRow,
    RequestRow,
    ReviewRow,
    StepDocument,
    TenantLimitRow,
    Waiting,
    WorkerRow,
    error_document,
    rfc3339,
    time_text,
)
from .steps import clone_documents, clone_status, step_documents, step_status

__all__ = [
    "NOTHING_UNDER_WAY",
    "Activity",
    "AttemptRow",
    "AuditDocument",
    "AuditRecord",
    "Blocked",
    "CloneDocument",
    "DeadLetterRow",
    "ErrorDocument",
    "EventDocument",
    "ExecutionDocument",
    "ExecutionSummary",
    "LimitRow",
    "RequestRow",
    "ReviewRow",
    "StepDocument",
    "TenantLimitRow",
    "Until",
    "Waiting",
    "WorkerRow",
    "attempt_rows",
    "blocked",
    "clone_documents",
    "clone_status",
    "entry_of",
    "error_document",
    "event_document",
    "execution_document",
    "find_path",
    "finished_at",
    "has_reached",
    "is_settled",
    "leaf_nodes",
    "path_of",
    "phase",
    "result_of",
    "result_seqs",
    "rfc3339",
    "step_documents",
    "step_status",
    "stored_output",
    "time_text",
]
