"""Findings, for people and for programs. They never contain payloads."""

from collections.abc import Iterator

from msgspec import Raw, Struct

from tenuto.kernel import events as e

from .invariants import INVARIANTS, Invariant

MAX_SHOWN = 300


class Finding(Struct, frozen=True, kw_only=True):
    """A violation: the invariant, the place, and the rows that show it."""

    invariant: str
    sentence: str
    execution: str | None
    detail: str
    rows: tuple[str, ...] = ()

    def lines(self) -> Iterator[str]:
        where = f" in {self.execution}" if self.execution is not None else ""
        yield f"{self.invariant}{where}: {self.detail}"
        yield f"    {self.sentence}"
        for row in self.rows:
            yield f"    {row}"


def finding(invariant: Invariant, execution: str | None, detail: str, *rows: str) -> Finding:
    assert invariant.id in INVARIANTS
    return Finding(
        invariant=invariant.id, sentence=invariant.sentence, execution=execution, detail=detail, rows=tuple(rows)
    )


def show_entry(entry: e.Entry) -> str:
    """Formats an entry on one line: its number, its event without payloads, its grants."""
    grants = " ".join(f"+{grant.path}/{grant.phase}/{grant.number}" for grant in entry.grants[:8])
    place = f"entry {entry.seq} at {entry.at} epoch {entry.epoch}"
    return f"{place}: {show(entry.event)} {grants}".rstrip()


def show(row: Struct) -> str:
    """Formats a row or an event on one line, without bodies and payloads."""
    fields = [
        f"{name}={value!r}"
        for name in row.__struct_fields__
        if (value := getattr(row, name)) not in (None, "", ()) and not isinstance(value, Raw | bytes | dict)
    ]
    text = f"{type(row).__name__} {' '.join(fields)}"
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 1]}…"
