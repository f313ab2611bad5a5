"""Services for the journeys, as processes of their own: `tenuto dev`, and `serve` with `worker`."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.cli.processes import ROOT, running

APP = "tests.browser.journeys_app"
LINK = re.compile(r"http://\S+/#token=[\w-]+")
ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+")
# No rate limit: all journeys come from one address.
ENVIRONMENT = {"PYTHONPATH": str(ROOT), "TENUTO_RATE_PER_SECOND": "0", "TENUTO_LOG_LEVEL": "ERROR"}


class Service(NamedTuple):
    """Where a service is, its database, and the sign-in link that it printed."""

    address: str
    url: str
    link: str


@contextmanager
def dev(folder: Path, port: int = 0) -> Iterator[Service]:
    """`tenuto dev` on SQLite in this folder. The database stays when it ends. Port 0 is any."""
    url = f"sqlite:///{folder / 'tenuto.db'}"
    given = {**ENVIRONMENT, "TENUTO_URL": url}
    with running("dev", "--app", APP, "--port", str(port), ready="TENUTO_API_KEY=", folder=ROOT, **given) as process:
        link = LINK.search(process.seen)
        assert link is not None, process.seen
        yield Service(link[0].partition("/#")[0], url, link[0])


@contextmanager
def deployed(url: str) -> Iterator[Service]:
    """`tenuto serve` and `tenuto worker` on a database."""
    given = {**ENVIRONMENT, "TENUTO_URL": url}
    with (
        running("serve", "--app", APP, "--port", "0", ready="serving on", folder=ROOT, **given) as process,
        running("worker", "--app", APP, ready="worker on", folder=ROOT, **given),
    ):
        address = ADDRESS.search(process.seen)
        assert address is not None, process.seen
        yield Service(address[0], url, "")
