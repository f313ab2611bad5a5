"""`tenuto audit`."""

import json

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
    told = json.loads(tenuto("audit", "--verify", "--json").out)
    assert (told["broken_at"], told["rows"] > 0) == (None, True)
    assert f"holds; its head is {told['head']}" in tenuto("audit", "--verify").out
