"""What is shipped for Prometheus and Grafana: it holds together, and names nothing that does not exist."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tenuto.telemetry.catalogue import CATALOGUE
from tests.servers.promtool import promtool

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus"
GUIDE = DEPLOY.parent / "docs" / "guides" / "observability.md"
DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana" / "tenuto.json").read_text(encoding="utf-8"))

KNOWN = {metric.name for metric in CATALOGUE} | {
    f"{metric.name}{end}" for metric in CATALOGUE if metric.kind == "histogram" for end in ("_bucket", "_count", "_sum")
}
NAME = re.compile(r"\b(?:tenuto|saga|order)_\w+")


@pytest.mark.requirement("J6")
@pytest.mark.parametrize(
    "command",
    [("check", "rules", "rules.yml"), ("check", "config", "prometheus.yml"), ("test", "rules", "rules.test.yml")],
)
def test_promtool_agrees(command: tuple[str, ...]) -> None:
    answer = promtool(*command, cwd=RULES)
    assert answer.returncode == 0, f"{answer.stdout}\n{answer.stderr}"


def test_every_alert_is_tested() -> None:
    alerts = re.findall(r"alert: (\w+)", (RULES / "rules.yml").read_text(encoding="utf-8"))
    tested = re.findall(r"alertname: (\w+)\n\s+exp_alerts:\n", (RULES / "rules.test.yml").read_text(encoding="utf-8"))
    assert set(alerts) == set(tested)


def test_what_to_do_is_written_for_every_alert() -> None:
    alerts = re.findall(r"alert: (\w+)", (RULES / "rules.yml").read_text(encoding="utf-8"))
    rows = [line.split("|")[1:3] for line in GUIDE.read_text(encoding="utf-8").splitlines() if line.startswith("| Ten")]
    named = [name for names, help in rows if help.strip() for name in names.strip().split(", ")]
    assert sorted(named) == sorted(alerts)


def test_rules_name_metrics_that_exist() -> None:
    lines = (RULES / "rules.yml").read_text(encoding="utf-8").splitlines()
    written = " ".join(line for line in lines if "record:" not in line)
    assert set(NAME.findall(written)) - KNOWN == set()


def expressions() -> list[str]:
    return [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", [])]


def test_the_dashboard_names_metrics_that_exist() -> None:
    named = {name for expression in expressions() for name in NAME.findall(expression)}
    assert named - KNOWN == set()
    assert len(named) > 20


def test_the_dashboard_has_panels_of_their_own() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in DASHBOARD["panels"]]
    assert len(set(places)) == len(places)


def test_the_expressions_of_the_dashboard_can_be_read(tmp_path: Path) -> None:
    """As rules, because promtool reads those."""
    rules = [
        {"record": f"panel:{n}", "expr": text.replace("$__rate_interval", "5m").replace("$instance", ".*")}
        for n, text in enumerate(expressions())
    ]
    (tmp_path / "panels.yml").write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    answer = promtool("check", "rules", "panels.yml", cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr


def test_a_name_that_does_not_exist_is_seen() -> None:
    assert NAME.findall("rate(tenuto_nothing_total[5m])") == ["tenuto_nothing_total"]
    assert "tenuto_nothing_total" not in KNOWN
