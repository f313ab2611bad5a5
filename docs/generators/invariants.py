"""`reference/invariants.md`: what `tenuto check` asks of everything that is stored."""

from tenuto.checking import INVARIANTS, Invariant

from .source import NOTE

OPENING = """\
# Invariants

What must be true of everything that is stored, whatever crashed and whenever. `tenuto check` asks all of it, of a
database or of an export:

```
tenuto check                               # TENUTO_URL
tenuto check postgresql://replica/tenuto   # a replica will do: it only reads
tenuto export --to record.ndjson           # everything, as lines of JSON
tenuto check --file record.ndjson          # the same check, elsewhere
tenuto check --stuck                       # only what somebody should have done by now
```

The check reads each history on its own, with books of its own: it does not ask the engine's rules whether they were
obeyed. Folding the history with the engine's code and comparing is one check among others. Every violation is told
with the rows that show it, never with payloads; the exit code is then 1.

It reads in short transactions that may not write, holds one execution in memory at a time, and can run on production.
`--stuck` asks four questions of indexed columns and can run every minute: alarm on anything it tells. What is late by
less than `--slack` (60 seconds) is not late.

*At rest* means: where nothing is under way, or not for longer than that.
"""

ELSEWHERE = """
## What a record cannot show

That a request which was answered is there after a crash, that an effect which may not be repeated is made once, that a
receiver who honours the key sees one: these need somebody outside who remembers. The crash tests have such a log, and
compare it with the record after every crash.

## The lines of an export

Each line is an object; `record` says what it is. Stored: `definition`, `execution`, `snapshot`, `events` (one decision,
its entries with the names of their fields, see [events](events.md)), `mail`, `review`, `task`, `admission`, `message`,
`tenant_limit`. Worked out from the history, for those who read it with tools of their own: `run`, `step`, `attempt`
(of every phase), `timer`. The first line is `head`, the last `end`: without it the record was cut off. Rows of an
execution follow its own line. An export holds payloads: keep it as you keep the database.
"""


def page() -> str:
    families: dict[str, list[Invariant]] = {}
    for invariant in INVARIANTS.values():
        families.setdefault(invariant.family, []).append(invariant)
    return "".join([f"{NOTE}\n{OPENING}", *(_family(name, found) for name, found in families.items()), ELSEWHERE])


def _family(name: str, found: list[Invariant]) -> str:
    rows = [f"| {one.id} | {one.sentence} | {one.when} |\n" for one in sorted(found)]
    return "".join([f"\n## {name}\n\n| id | invariant | when |\n|---|---|---|\n", *rows])
