"""`tenuto audit`."""

import hashlib
import json
from datetime import datetime

from .conftest import Run, Work
from .test_executions import expenses


def test_what_a_person_did_is_in_the_audit_in_that_persons_name(tenuto: Run, work: Work) -> None:
    id = work(expenses)
    assert tenuto("pause", id, "--reason", "lunch").code == 0
    assert tenuto("resume", id).code == 0
    rows = json.loads(tenuto("audit", "--object", id, "--json").out)
    assert [row["action"] for row in rows][:2] == ["execution.resumed", "execution.paused"]
    assert (rows[1]["actor"], rows[1]["reason"]) == ("cli:ada", "lunch")
    lines = tenuto("audit", "--actor", "cli:ada").out.splitlines()
    assert lines[1].split("\t")[1:] == ["cli:ada", "execution.paused", id, "lunch"]
    assert tenuto("audit", "--limit", "1").out == lines[0] + "\n"
    assert tenuto("audit", "--action", "nothing.happened") == (0, "", "")


def test_the_chain_is_looked_at(tenuto: Run, work: Work) -> None:
    assert tenuto("pause", work(expenses)).code == 0
    told = json.loads(tenuto("audit", "verify", "--json").out)
    assert (told["broken_at"], told["rows"] > 0) == (None, True)
    assert f"is intact; its head is {told['rows']}:{told['head']}" in tenuto("audit", "verify").out


def test_a_head_that_was_kept_elsewhere_must_be_in_the_chain_still(tenuto: Run, work: Work) -> None:
    id = work(expenses)
    assert tenuto("pause", id).code == 0
    told = json.loads(tenuto("audit", "verify", "--json").out)
    kept = f"{told['rows']}:{told['head']}"
    assert tenuto("resume", id).code == 0
    assert tenuto("audit", "verify", "--kept", kept).code == 0
    for wrong, why in ((f"{told['rows']}:{'0' * 64}", "the log was changed"), (f"999:{'0' * 64}", "rows were removed")):
        found = tenuto("audit", "verify", "--kept", wrong)
        assert (found.code, why in found.out) == (1, True), found
    for none in ("yesterday", f"1:{'z' * 64}", f"0:{'0' * 64}"):
        assert tenuto("audit", "verify", "--kept", none).code == 2


def test_an_exported_chain_can_be_checked_by_anybody(tenuto: Run, work: Work) -> None:
    assert tenuto("pause", work(expenses), "--reason", "für später").code == 0
    rows = [json.loads(line) for line in tenuto("audit", "export").out.splitlines()]
    assert [row["n"] for row in rows] == list(range(1, len(rows) + 1))
    before = b""
    for row in rows:
        at = round(datetime.fromisoformat(row["at"]).timestamp() * 1_000)
        told = {name: row[name] for name in ("action", "actor", "n", "object_id", "object_type", "reason", "tenant")}
        text = json.dumps({**told, "at": at}, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        before = hashlib.sha256(b"\x01" + before + text.encode()).digest()
        assert row["hash"] == before.hex()
    assert json.loads(tenuto("audit", "verify", "--json").out)["head"] == before.hex()
