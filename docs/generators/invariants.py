"""`reference/invariants.md`: what `tenuto check` asks of everything that is stored."""

from tenuto.checker import INVARIANTS, Invariant

from .source import NOTE

OPENING = """\
# Invariants

These invariants hold for everything that Tenuto stores, after any crash. `tenuto check` verifies them in a database or
in an export:

```
tenuto check                               # TENUTO_URL
tenuto check postgresql://replica/tenuto   # a replica works too: the check only reads
tenuto export --to record.ndjson           # what was recorded, as lines of JSON
tenuto check --file record.ndjson          # the same check, elsewhere
tenuto check --stuck                       # only overdue work
```

The checker builds its own model of each execution from its history. It does not rely on the rules of the engine.
Folding the history with the engine's code and comparing the result is one check among others. Each violation is
reported with the rows that show it, never with payloads. If there is a violation, the exit code is 1.

The checker reads in short read-only transactions and holds one execution in memory at a time. It can run on production.

*At rest* means that the invariant holds where nothing is in progress, or not for longer than `--slack` (60 seconds).

*Told* means that the finding is for information: it is not a violation and does not change the exit code. A limit can
be exceeded because it was lowered, because a process that was declared dead came back, or because several failed
executions were retried at once. The rows do not show which. The excess disappears by itself.

`--stuck` runs a few indexed queries and can run every minute. Alert on every finding: unless no worker was running,
nothing in the normal operation of Tenuto explains it.

| finding | action |
|---|---|
| V5: due, and no worker claimed it | start workers with its definition; `tenuto ls --blocked` names it |
| V5: waiting for a queue that no worker serves | start a worker with `--queue` |
| L8: the owner or the task worker is dead, and no process took over | start a worker |
| H1: blocked | this release cannot read it, or the database refused it: see `tenuto show`; any command tries again |
| V6: unread message | the owner does not get to it: check the load of the workers |
| B2: not published | the broker is unreachable, or no process publishes; see the log |
| A1: not chained | start a worker or a service |
"""

ELSEWHERE = """
## What a record cannot show

Some promises need somebody outside who remembers. The crash and chaos tests have such a log, and compare it with the
record; others have tests of their own. By their ids in the list of invariants that the tests go by:

| id | promise | why not here |
|---|---|---|
| K1, K5 | what was acknowledged is there, and one key is one execution | only the callers know what they were told |
| K3, K4, K6 | what was refused left nothing | there is nothing to look at |
| K7, L10 | every effect is explained, and a receiver who honours the key sees one | only the receiver knows |
| L7, B1 | what is published was recorded before, and all that should be is | which kinds are published is a setting |
| B3 | what was consumed has its effect once | the effect is in the consumer's tables; here is one row for each |
| V4 | an attempt has all the time of its timeout | whoever runs it measures that, by its own clock |
| R7 | an error has one class | the type of an exception is not recorded |
| H3 | whoever decided was allowed to | roles and four eyes are settings, and change; the audit says who it was |
| A3 | no secret escapes | what is a secret is not recorded |
| I2, I4 | no tenant sees another's, and each has its share | who reads and who waits is not recorded |
| Z1 | limits bite before the first write | there is nothing to look at |
| P6, D4 | clones are undone before what they depend on; a new version moves nothing | parts of P2 and of G4 |
| C3 to C8 | the account of a tenant | there is none: credits are in the history of a run, for C1 and C2 |
| B6, F1 | lanes; artefacts | there are none |

Of an execution that was started in nobody's name, the audit has no row for its start and its end (the history has). Of
what happened before the database had an audit, it has none at all.

## The lines of an export

Each line is an object; `record` says what it is. The first line is `head`, the last `end`: without it the record was
cut off. Rows of an execution follow its own line. An export holds payloads: keep it as you keep the database. API keys,
answers that are kept for repeated requests and requests for a second person are not part of it.

| stored | what |
|---|---|
| `migration`, `definition`, `session` | the schema, what is published and drafted, which processes ran |
| `tenant_limit`, `limit`, `limit_holder` | limits, and what is used of them |
| `audit_head`, `audit` | the audit: its chains, row by row, and where each should end |
| `inbox` | what consumers have met |
| `page` | executions follow that were read at this moment: what is late is late by it |
| `execution` | an execution, with what is known of its owner |
| `snapshot`, `events` | each `events` is one decision: entries with the names of their [fields](events.md) |
| `mail`, `review`, `task`, `admission`, `progress` | what came for it, waits for people, for queues and for its turn |
| `message`, `notice` | what it has to say, and what was sent |
| `act` | a row of the audit once more, beside the execution that it tells of; a review's has the review's id |

| worked out from the history | what |
|---|---|
| `run` | from a start or a retry to its end |
| `transition` | a change of the execution's status: from what to what, with which entry, why and by whom |
| `step` | of every run, with its safety, its layer, the order of undo, when it was done |
| `attempt` | every try, with its lease and key: in the phase `compensate` an undo, in `guard`, `reconcile` a question |
| `timer` | what the execution waits for |
| `callback` | mail, opened: about which attempt it is, and what became of it |
"""


def page() -> str:
    families: dict[str, list[Invariant]] = {}
    for invariant in INVARIANTS.values():
        families.setdefault(invariant.family, []).append(invariant)
    return "".join([f"{NOTE}\n{OPENING}", *(_family(name, found) for name, found in families.items()), ELSEWHERE])


def _family(name: str, found: list[Invariant]) -> str:
    rows = [f"| {one.id} | {one.sentence} | {one.when} |\n" for one in sorted(found)]
    return "".join([f"\n## {name}\n\n| id | invariant | when |\n|---|---|---|\n", *rows])
