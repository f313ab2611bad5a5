"""All metrics with their names, kinds, labels and meanings. The reference page is generated from this list.

Labels have few values: statuses, classes, kinds, types of steps, templates of paths. Two metrics are labelled by saga
and step; a process distinguishes at most `MAX_STEPS` of them and counts the rest as `other`. Definitions that belong to
a tenant are counted together as `owned`, and their steps by type. The same applies to queues that only such definitions
name and no worker serves. No metric is labelled by execution or tenant.
"""

from typing import Final, Literal, NamedTuple

MAX_STEPS: Final = 1_000
OTHER: Final = "other"
OF_A_TENANT: Final = "owned"

# In milliseconds, as recorded. Exported in seconds.
STEP_BOUNDS: Final = (1, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 600_000, 3_600_000)
EXECUTION_BOUNDS: Final = (10, 100, 500, 1_000, 5_000, 15_000, 60_000, 300_000, 1_800_000, 3_600_000, 86_400_000)
STORE_BOUNDS: Final = (0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1_000, 5_000)
REQUEST_BOUNDS: Final = (1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000)
BATCH_BOUNDS: Final = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000)


class Metric(NamedTuple):
    name: str
    kind: Literal["counter", "gauge", "histogram"]
    text: str
    labels: tuple[str, ...] = ()


# -- Entries recorded by this process ----------------------------------------------------------------------------------

STARTED = Metric("tenuto_executions_started_total", "counter", "Executions accepted.")
FINISHED = Metric("tenuto_executions_finished_total", "counter", "Runs that came to their end.", ("status",))
EXECUTION_SECONDS = Metric(
    "tenuto_execution_duration_seconds", "histogram", "From an execution's start to the end of its run.", ("status",)
)
REOPENED = Metric("tenuto_runs_reopened_total", "counter", "Failed executions that were retried as a new run.")
STEP_SECONDS = Metric(
    "tenuto_step_duration_seconds", "histogram", "How long attempts took, and people to approve.", ("step_type",)
)
ATTEMPTS = Metric("tenuto_step_attempts_total", "counter", "Attempts that ended.", ("phase", "outcome"))
RETRIES = Metric("tenuto_step_retries_total", "counter", "Attempts that failed and are repeated.", ("error_class",))
FAILURES = Metric("tenuto_step_failures_total", "counter", "Steps that failed for good.", ("error_class",))
TIMEOUTS = Metric(
    "tenuto_step_timeouts_total",
    "counter",
    "Attempts (attempt, ack, result) and whole steps (deadline) that took too long.",
    ("kind",),
)
SKIPPED = Metric("tenuto_steps_skipped_total", "counter", "Steps that were closed without an attempt.", ("reason",))
LOST = Metric("tenuto_attempts_lost_total", "counter", "Attempts whose worker was lost: their outcome is unknown.")
COMPENSATIONS = Metric("tenuto_compensations_total", "counter", "Steps undone, or not.", ("outcome",))
CIRCUITS = Metric("tenuto_circuits_opened_total", "counter", "Rollbacks that a critical failure stopped.")
REVIEWS = Metric("tenuto_reviews_opened_total", "counter", "Questions put to people.", ("kind",))
RESOLVED = Metric("tenuto_reviews_resolved_total", "counter", "Questions that were answered.", ("resolution",))

SAGA_SECONDS = Metric("saga_step_duration_seconds", "histogram", "How long attempts of a step took.", ("saga", "step"))
SAGA_MOVES = Metric(
    "saga_flow_transitions_total",
    "counter",
    "Steps that came to an outcome, and executions (without a step) that came to a status.",
    ("saga", "step", "to"),
)
ORDER_SECONDS = Metric(
    "order_e2e_latency_seconds",
    "histogram",
    "From start to end, of executions whose target is an order.",
    ("status",),
)

# -- Current state of this process -------------------------------------------------------------------------------------

IN_HAND = Metric("tenuto_executions_in_hand", "gauge", "Executions that this process holds in memory.")
SLOTS = Metric(
    "tenuto_slots", "gauge", "Handlers that this process runs at once, at most; 0 if it only serves.", ("lane",)
)
SLOTS_IN_USE = Metric("tenuto_slots_in_use", "gauge", "Handlers that run.", ("lane",))
SLOTS_WAITING = Metric("tenuto_slots_waiting", "gauge", "Attempts that wait for a slot or a limit.", ("lane",))
LEASE_AGE = Metric("tenuto_session_renewal_age_seconds", "gauge", "Since this process last renewed its lease.")
SESSIONS_LOST = Metric("tenuto_sessions_lost_total", "counter", "Times that this process was taken for dead.")
SESSIONS_ENDED = Metric("tenuto_sessions_ended_total", "counter", "Silent processes whose work this one set free.")
SET_ASIDE = Metric(
    "tenuto_executions_set_aside_total", "counter", "Times that an execution could not be read or recorded: it waits."
)
COMMIT_SECONDS = Metric("tenuto_commit_seconds", "histogram", "How long the database took to commit a batch.")
COMMIT_BATCH = Metric("tenuto_commit_batch_size", "histogram", "Decisions that were committed together.")
STORE_ERRORS = Metric("tenuto_storage_errors_total", "counter", "Calls of the database that failed.", ("code",))
CLAIM_SECONDS = Metric("tenuto_claim_seconds", "histogram", "How long it took to look for work in the database.")
CLAIMED = Metric("tenuto_executions_claimed_total", "counter", "Executions taken up from the database.")
UNCOMMITTED = Metric("tenuto_commits_waiting", "gauge", "Decisions that wait for their commit.")

# -- HTTP --------------------------------------------------------------------------------------------------------------

HTTP_REQUESTS = Metric(
    "tenuto_http_requests_total",
    "counter",
    "Requests by the template of their path, and by the class of the answer: 2xx, 4xx, …, or gone.",
    ("route", "method", "status"),
)
HTTP_SECONDS = Metric(
    "tenuto_http_request_duration_seconds",
    "histogram",
    "How long answers took. Streams, and requests that wait for an execution, are not in it.",
    ("route", "method"),
)
HTTP_UNDER_WAY = Metric("tenuto_http_requests_in_flight", "gauge", "Requests and streams that are under way.")
HTTP_REFUSED = Metric(
    "tenuto_http_requests_refused_total",
    "counter",
    "Requests turned away: no room here (`room`), a tenant's share of it used up (`share`), too many of a credential "
    "(`rate`) or a tenant (`tenant_rate`), or its tenant has too many executions in flight (`tenant`).",
    ("reason",),
)

# -- State of the database, the same for all processes -----------------------------------------------------------------

DATABASE_UP = Metric("tenuto_database_up", "gauge", "1 if the database answered when these figures were made.")
DLQ = Metric("tenuto_dlq_items", "gauge", "Open dead letters.")
REVIEWS_OPEN = Metric("tenuto_reviews_open", "gauge", "Questions that wait for people, dead letters apart.", ("kind",))
DUE = Metric("tenuto_executions_due", "gauge", "Executions that are due and have no owner.")
DUE_AGE = Metric("tenuto_executions_due_oldest_seconds", "gauge", "How long the one that waits longest has been due.")
OWNED = Metric("tenuto_executions_owned", "gauge", "Executions that workers hold.")
MAIL = Metric("tenuto_mailbox_unread", "gauge", "Messages to executions that were not read yet.")
MAIL_AGE = Metric("tenuto_mailbox_oldest_seconds", "gauge", "How old the oldest of them is.")
TASKS = Metric("tenuto_queue_tasks_waiting", "gauge", "Attempts that wait for a worker of a queue.", ("queue",))
TASKS_AGE = Metric("tenuto_queue_oldest_seconds", "gauge", "How long the oldest of them has waited.", ("queue",))
OUTBOX = Metric("tenuto_outbox_unpublished", "gauge", "Messages that were not published yet.")
OUTBOX_AGE = Metric("tenuto_outbox_oldest_seconds", "gauge", "How old the oldest of them is.")
WORKERS = Metric(
    "tenuto_sessions_live", "gauge", "Processes that run steps of this database; those that only serve are none."
)

RECORDED: Final = (
    STARTED, FINISHED, EXECUTION_SECONDS, REOPENED, STEP_SECONDS, ATTEMPTS, RETRIES, FAILURES, TIMEOUTS, SKIPPED, LOST,
    COMPENSATIONS, CIRCUITS, REVIEWS, RESOLVED, SAGA_SECONDS, SAGA_MOVES, ORDER_SECONDS,
)  # fmt: skip
STANDING: Final = (
    IN_HAND, SLOTS, SLOTS_IN_USE, SLOTS_WAITING, LEASE_AGE, SESSIONS_LOST, SESSIONS_ENDED, SET_ASIDE, COMMIT_SECONDS,
    COMMIT_BATCH, STORE_ERRORS, CLAIM_SECONDS, CLAIMED, UNCOMMITTED,
)  # fmt: skip
SERVED: Final = (HTTP_REQUESTS, HTTP_SECONDS, HTTP_UNDER_WAY, HTTP_REFUSED)
STORED: Final = (
    DATABASE_UP, DLQ, REVIEWS_OPEN, DUE, DUE_AGE, OWNED, MAIL, MAIL_AGE, TASKS, TASKS_AGE, OUTBOX, OUTBOX_AGE, WORKERS,
)  # fmt: skip
CATALOGUE: Final = (*RECORDED, *STANDING, *SERVED, *STORED)
