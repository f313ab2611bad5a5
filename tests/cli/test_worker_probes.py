"""A worker has no API, and is asked how it does all the same."""

import httpx2

from tests.servers.ports import free_port

from .processes import running
from .test_processes import APP


def test_a_worker_answers_probes_where_it_is_told_to(url: str) -> None:
    port = free_port()
    with (
        running("worker", "--app", APP, ready="metrics on", TENUTO_URL=url, TENUTO_METRICS_PORT=str(port)),
        httpx2.Client(
            base_url=f"http://127.0.0.1:{port}", timeout=60, transport=httpx2.HTTPTransport(retries=5)
        ) as client,
    ):
        assert client.get("/readyz").json() == {"status": "ready"}
        assert client.get("/healthz").json() == {"status": "ok"}
        assert "tenuto_sessions_live 1.0" in client.get("/metrics").text
