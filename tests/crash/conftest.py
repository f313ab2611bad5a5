"""How many processes were killed is told at the end: a number that falls is a suite that proves less."""

import pytest

CRASHES = "crashes"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [report for found in terminalreporter.stats.values() for report in found]
    calls = [report for report in reports if getattr(report, "when", "") == "call"]  # what follows repeats its notes
    notes = [note for report in calls for note in report.user_properties]
    crashes = sum(int(str(value)) for name, value in notes if name == CRASHES)
    if crashes:
        terminalreporter.write_line(f"{crashes} processes were killed at their crash points")
