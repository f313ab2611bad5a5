"""`tenuto keys`: on the database itself; the key is printed once."""

import json
from datetime import datetime, timedelta
from pathlib import Path

from .conftest import Run


def test_a_key_is_made_listed_and_revoked(tenuto: Run) -> None:
    made = tenuto("keys", "create", "--tenant", "acme", "--role", "operator", "--role", "approver", "--name", "ci")
    assert (made.code, made.err) == (0, "")
    token = made.out.strip()
    assert token.startswith("tnt_")
    (row,) = json.loads(tenuto("keys", "ls", "--json").out)
    assert (row["tenant"], row["roles"], row["name"]) == ("acme", ["operator", "approver"], "ci")
    assert row["created_by"] == "cli:ada"
    assert token.split("_")[1] == row["id"]
    assert token not in json.dumps(row)
    assert tenuto("keys", "ls", "--tenant", "other").out == ""
    assert tenuto("keys", "revoke", row["id"]) == (0, f"revoked: {row['id']}\n", "")
    assert json.loads(tenuto("keys", "ls", "--json").out)[0]["revoked_at"] is not None
    assert tenuto("keys", "ls").out.split("\t")[4] == "revoked"


def test_a_key_for_programs(tenuto: Run) -> None:
    options = ["--tenant", "acme", "--role", "viewer", "--json"]
    made = json.loads(tenuto("keys", "create", *options).out)
    assert made["key"].startswith(f"tnt_{made['id']}_")
    life = datetime.fromisoformat(made["expires_at"]) - datetime.fromisoformat(made["created_at"])
    assert life == timedelta(days=90)
    assert json.loads(tenuto("keys", "create", *options, "--days", "0").out)["expires_at"] is None
    assert json.loads(tenuto("keys", "create", *options, "--days", "36500").out)["expires_at"] > "2100"
    assert tenuto("keys", "create", *options, "--days", "36501").code == 2  # no calendar goes on for ever
    assert len(json.loads(tenuto("keys", "ls", "--json").out)) == 3


def test_a_key_can_be_revoked_by_itself(tenuto: Run) -> None:
    made = json.loads(tenuto("keys", "create", "--tenant", "acme", "--role", "viewer", "--json").out)
    assert tenuto("keys", "revoke", made["key"]).out == f"revoked: {made['id']}\n"
    told = json.loads(tenuto("keys", "revoke", made["id"], "--json").out)
    assert told == {"id": made["id"], "revoked": True}
    assert tenuto("keys", "revoke", "nobody").code == 3


def test_a_key_that_is_none(tenuto: Run) -> None:
    tenuto("migrate")
    done = tenuto("keys", "revoke", "nix")
    assert (done.code, done.err) == (
        3,
        "tenuto: There is no key 'nix'. [not_found]\nWhat to do: run `tenuto keys ls` to list them\n",
    )


def test_what_a_key_cannot_be(tenuto: Run, tmp_path: Path) -> None:
    assert tenuto("keys", "create", "--role", "admin").code == 2
    refused = tenuto("keys", "create", "--tenant", "acme", "--role", "boss")
    assert refused.code == 2
    assert "'boss' is not a role. Roles are viewer" in " ".join(refused.err.split())
    assert tenuto("keys", "create", "--tenant", "a b", "--role", "admin").code == 2
    assert list(tmp_path.iterdir()) == []  # no database was made for it


def test_the_option_for_all_commands_says_whose_keys(tenuto: Run) -> None:
    tenuto("keys", "create", "--tenant", "acme", "--role", "viewer")
    assert tenuto("--tenant", "acme", "keys", "ls").out.count("\n") == 1
    assert tenuto("--tenant", "other", "keys", "ls").out == ""
    assert tenuto("keys", "ls").out.count("\n") == 1
