"""`tenuto limits`: of steps, and of tenants."""

import json

from .conftest import Run, Work
from .test_executions import expenses


def test_limits_are_set_listed_and_lifted(tenuto: Run) -> None:
    assert tenuto("limits", "set", "ses", "--rate", "14/s", "--concurrency", "20") == (
        0,
        "set: ses, 14/s, 20 at once\n",
        "",
    )
    assert tenuto("limits", "tenant", "acme", "--in-flight", "100").out == "set: tenant acme, 100 executions\n"
    told = json.loads(tenuto("limits", "--json").out)
    assert [(row["name"], row["rate"], row["concurrency"]) for row in told["limits"]] == [("ses", "14/s", 20)]
    assert [(row["tenant"], row["max_in_flight"]) for row in told["tenants"]] == [("acme", 100)]
    assert [line.split("\t")[:3] for line in tenuto("limits").out.splitlines()] == [
        ["steps", "ses", "14/s, 20 at once"],
        ["tenant", "acme", "100 executions"],
    ]
    assert tenuto("limits", "lift", "ses").code == 0
    assert tenuto("limits", "tenant", "acme", "--lift").code == 0
    assert tenuto("limits", "ls") == (0, "", "")


def test_for_programs_what_was_set_is_json(tenuto: Run) -> None:
    def told(*arguments: str) -> object:
        return json.loads(tenuto("limits", *arguments, "--json").out)

    assert told("set", "ses", "--rate", "14/s") == {"name": "ses", "rate": "14/s", "concurrency": None}
    assert told("lift", "ses") == {"name": "ses", "rate": None, "concurrency": None}
    assert told("tenant", "acme", "--in-flight", "3") == {"tenant": "acme", "max_in_flight": 3}
    assert told("tenant", "acme", "--lift") == {"tenant": "acme", "max_in_flight": None}


def test_what_a_limit_cannot_be(tenuto: Run) -> None:
    assert tenuto("limits", "set", "ses").code == 2
    assert tenuto("limits", "tenant", "acme").code == 2
    refused = tenuto("limits", "set", "ses", "--rate", "often")
    assert refused.code == 2
    assert "Invalid value for --rate: 'often' is not a rate" in refused.err


def test_a_tenant_that_is_full_is_told_to_wait(tenuto: Run, work: Work) -> None:
    work(expenses)
    assert tenuto("limits", "tenant", "default", "--in-flight", "0").code == 0
    refused = tenuto("run", "expenses", "-i", "1")
    assert refused.code == 6
    assert "[tenant_limit]\nWhat to do: " in refused.err
