"""What an export holds: every kind of record with its fields, of a database in which there is something of each."""

import asyncio
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tenuto.checker import export_lines

from .databases import ANN, BEN, migrated

# Who reads an export with tools of his own relies on these.
FIELDS = {
    "definition": "name version status hash published_at document",
    "page": "at",
    "execution": "id tenant definition version key request_hash status created_at ended_at target_id correlation_id",
    "run": "execution run status started_at ended_at",
    "transition": "execution run seq at event before after cause actor",
    "step": "execution run path safety compensable policy layer status done_seq",
    "attempt": "execution run path phase number lease epoch worker key state error_class granted_seq until ended_seq "
    "cause",
    "events": "execution seq count entries",
    "callback": "id execution path number lease kind received_at verdict",
    "mail": "id execution received_at body verdict",
    "review": "id execution path kind reason permission error_class attempts resolution resolved_by resolved_at due_at",
    "timer": "execution id due_at kind state",
    "task": "execution path phase number tenant queue session session_ended_at begun_at parked",
    "admission": "execution tenant definition key position ahead",
    "message": "execution seq tenant kind body created_at published_at tries",
    "inbox": "consumer id at",
    "audit": "tenant n actor action object_type object_id at reason hash",
    "audit_head": "tenant n hash",
    "act": "execution n actor action object_id",
    "notice": "key tenant execution path channel begun_at sent_at",
    "progress": "execution path body",
    "session": "id worker build queues started_at expires_at ended_at",
    "limit": "name count period_ms concurrency",
    "limit_holder": "name session held wanted",
    "tenant_limit": "tenant max_in_flight in_flight counted",
    "migration": "number name applied_at",
    "snapshot": "execution seq body",
}


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """By kind."""

    async def read(url: str) -> list[bytes]:
        return [line async for line in export_lines(url, "1")]

    folder: Path = tmp_path_factory.mktemp("export")
    with migrated(folder, None) as url:
        found: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
        for line in asyncio.run(read(url)):
            row = json.loads(line)
            found[row["record"]].append(row)
    return found


@pytest.mark.parametrize("kind", FIELDS)
def test_a_kind_is_there_with_its_fields(lines: dict[str, list[dict[str, Any]]], kind: str) -> None:
    assert lines[kind], "there is none"
    assert set(FIELDS[kind].split()) <= set(lines[kind][0])


def test_every_kind_is_named_here(lines: dict[str, list[dict[str, Any]]]) -> None:
    assert lines.keys() - {"head", "end"} == FIELDS.keys()


def test_entries_have_names(lines: dict[str, list[dict[str, Any]]]) -> None:
    entry = lines["events"][0]["entries"][0]
    assert {"seq", "at", "event", "cause", "actor", "epoch", "grants"} <= entry.keys()
    assert entry["event"]["type"] == "started"


def test_the_changes_of_a_status_follow_one_another_to_what_it_is(lines: dict[str, list[dict[str, Any]]]) -> None:
    by_execution: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in lines["transition"]:
        by_execution[row["execution"]].append(row)
    for changes in by_execution.values():
        assert [row["before"] for row in changes] == ["", *(row["after"] for row in changes[:-1])]
    last = {id: changes[-1]["after"] for id, changes in by_execution.items()}
    assert last == {row["id"]: row["status"] for row in lines["execution"]}


def test_steps_are_told_of_every_run(lines: dict[str, list[dict[str, Any]]]) -> None:
    runs = {(row["execution"], row["run"]) for row in lines["run"]}
    again = {id for id, run in runs if run > 1}
    assert again
    told = {(row["execution"], row["run"]) for row in lines["step"]}
    assert {each for each in told if each[0] in again} == {each for each in runs if each[0] in again}


def test_what_was_done_in_names_is_beside_its_execution(lines: dict[str, list[dict[str, Any]]]) -> None:
    acts = [(row["actor"], row["action"]) for row in lines["act"]]
    assert sorted(acts) == [
        (ANN, "execution.started"),
        (ANN, "execution.started"),
        (BEN, "execution.cancel_requested"),
        (BEN, "execution.canceled"),
        (BEN, "execution.paused"),
    ]


def test_an_attempt_that_is_open_says_how_long_its_holder_may_be_silent(
    lines: dict[str, list[dict[str, Any]]],
) -> None:
    states = {row["state"]: row["until"] for row in lines["attempt"] if row["state"] != "open"}
    assert set(states.values()) == {None}


def test_mail_is_opened(lines: dict[str, list[dict[str, Any]]]) -> None:
    assert "signal" in {row["kind"] for row in lines["callback"]}
    assert len(lines["callback"]) == len(lines["mail"])
