"""Views of an execution: its status, why it is blocked, its steps and its attempts.

The views are pure functions of state and history, in the vocabulary of the HTTP API. An `Activity` adds facts that only
the runtime knows: which granted attempts run, and why others wait.
"""

from .attempts import attempt_rows, last_trace
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
    IdentityDocument,
    LimitRow,
    RequestRow,
    ReviewRow,
    SessionDocument,
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
    "IdentityDocument",
    "LimitRow",
    "RequestRow",
    "ReviewRow",
    "SessionDocument",
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
    "last_trace",
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
