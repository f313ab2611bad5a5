"""What `tenuto overview` and `tenuto feed` print."""

import json
import re
import signal
from typing import Any

import pytest

from .conftest import Run, Work, service_on
from .processes import running
from .test_executions import atlantis, expenses, oslo
from .test_processes import tenuto as command


def test_overview_counts_what_there_is_and_what_needs_attention(tenuto: Run, work: Work) -> None:
    for job in (oslo, atlantis, expenses):
        work(job)
    told = dict(re.split(r"\s{2,}", line.strip()) for line in tenuto("overview").out.splitlines() if line.strip())
    assert (told["succeeded"], told["failed"], told["waiting approval"], told["running"]) == ("1", "1", "1", "0")
    assert (told["reviews"], told["dead letters"]) == ("1", "1")
    document = json.loads(tenuto("overview", "--json").out)
    assert (document["counts"]["succeeded"], document["dlq"]["open"]) == (1, 1)
    (review,) = document["reviews"]["due"]
    assert (document["reviews"]["open"]["approval"], review["kind"]) == (1, "approval")


def test_overview_counts_the_tenants_own(tenuto: Run, work: Work) -> None:
    work(oslo)
    document = json.loads(tenuto("--tenant", "theirs", "overview", "--json").out)
    assert (set(document["counts"].values()), document["dlq"]["open"], document["workers"]) == ({0}, 0, None)


@pytest.mark.parametrize("over_http", [False, True])
def test_feed_shows_changes_as_they_happen_until_it_is_interrupted(url: str, work: Work, over_http: bool) -> None:
    id = work(expenses)
    with service_on(url) as (address, key):
        place = ("--server", address) if over_http else ("--url", url)
        environment: dict[str, Any] = {"TENUTO_API_KEY": key} if over_http else {}
        with running(*place, "feed", "--watch", f"{id}:0", ready="event 1: ", **environment) as feed:
            assert command(url, "cancel", id, "--reason", "no").returncode == 0
            work(oslo)
            assert feed.process.stdout is not None
            shown = ""
            while "book-trip is succeeded" not in shown:
                shown += feed.process.stdout.readline()
            feed.process.send_signal(signal.SIGINT)
            feed.process.communicate()
    assert f"{id}  expenses is canceled" in shown
    assert feed.process.returncode == 130
