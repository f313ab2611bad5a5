"""For all tests: which of them run, their seed, reproducible properties, and a PostgreSQL server."""

import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from docs.generators.requirements import requirements
from tests import draw
from tests.servers import postgres

# Before anybody imports them: tests of the checker and of snapshots drive the kernel, too.
pytest.register_assert_rewrite("tests.kernel.driver", "tests.kernel.laws")

settings.register_profile(
    "tenuto", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], database=None
)
settings.load_profile("tenuto")

SAMPLE = 100  # tests of the contract on each database


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--contract",
        choices=["all", "memory", "databases", "sample"],
        default="all",
        help="where tests/contract runs: everywhere, in memory, elsewhere, or in memory with a seeded sample elsewhere",
    )
    parser.addoption("--prove", action="store_true", help="run all cases of the tests that are marked with `prove`")


def pytest_configure(config: pytest.Config) -> None:
    os.environ[draw.VARIABLE] = str(draw.seed())  # the same in every process, even if a commit is made meanwhile
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell leaves it for what it starts in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(f"Seed of random draws: {draw.seed()}. Repeat them with SEED={draw.seed()}.")
    missing = {why for report in terminalreporter.stats.get("skipped", ()) if (why := _missing(report))}
    for why in sorted(missing):  # last, so that nobody overlooks it
        terminalreporter.write_line(f"Browser tests were NOT RUN: {why}", red=True)


def _missing(report: pytest.TestReport) -> str:
    """What a skipped browser test lacks. No other test is skipped."""
    why = report.longrepr
    if not report.nodeid.startswith("tests/browser/") or not isinstance(why, tuple):
        return ""
    return why[2].removeprefix("Skipped: ")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    refuse_unknown_requirements(items)
    dropped = _left_out_of_contract(config.getoption("contract"), items)
    if not config.getoption("prove"):
        dropped |= _left_to_prove(items)
    if dropped:
        config.hook.pytest_deselected(items=[item for item in items if item in dropped])
        items[:] = [item for item in items if item not in dropped]


def refuse_unknown_requirements(items: list[pytest.Item]) -> None:
    for item in items:
        for mark in item.iter_markers("requirement"):
            unknown = [id for id in mark.args if id not in requirements()]
            if unknown or not mark.args:
                raise pytest.UsageError(
                    f"{item.nodeid} names the requirements {unknown}. Name rows of docs/requirements.md."
                )


def _left_to_prove(items: list[pytest.Item]) -> set[pytest.Item]:
    """What `make test` leaves out of the tests that are marked for `make prove`."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("prove") is not None:
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    left: set[pytest.Item] = set()
    for name, found in cases.items():
        mark = found[0].get_closest_marker("prove")
        assert mark is not None
        left |= {*found} - {*draw.draw(name, found, mark.kwargs.get("drawn", 0))}
    return left


def _left_out_of_contract(wanted: str, items: list[pytest.Item]) -> set[pytest.Item]:
    contract = [item for item in items if item.path.parent.name == "contract"]
    elsewhere: dict[str, list[pytest.Item]] = {}
    for item in contract:
        if _runtime(item) not in ("", "memory"):
            elsewhere.setdefault(_runtime(item), []).append(item)
    on_databases = {item for found in elsewhere.values() for item in found}
    match wanted:
        case "memory":
            return on_databases
        case "databases":
            return {*contract} - on_databases
        case "sample":
            drawn = [draw.draw(f"contract {name}", found, SAMPLE) for name, found in elsewhere.items()]
            return on_databases - {item for sample in drawn for item in sample}
        case _:
            return set()


def _runtime(item: pytest.Item) -> str:
    """The runtime that a test of the contract runs on, if it names one."""
    call = getattr(item, "callspec", None)
    return "" if call is None else str(call.params.get("runtime", ""))


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[postgres.Server]:
    """One server for each process that runs tests, started when the first of them asks."""
    with postgres.running() as server:
        yield server
