"""What people do over HTTP: approvals, rejections, signals, reviews and dead letters."""

from itertools import count
from typing import Any
from urllib.parse import quote

import httpx2
import pytest

from tenuto import Retry, SagaBuilder
from tenuto.errors import IndeterminateError, NonRetryableError
from tests.service.conftest import MakeSite, Site, until


class Bank:
    """Refuses until somebody mends it."""

    def __init__(self) -> None:
        self.broken = True
        self.calls = 0

    async def pay(self, amount: int) -> int:
        self.calls += 1
        if self.broken:
            raise NonRetryableError("the account is closed")
        return amount


async def fine() -> None:
    pass


async def refuse() -> None:
    raise NonRetryableError("no")


async def silent() -> None:
    raise IndeterminateError("no answer")


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is."""
    monkeypatch.setattr("tenuto.api.bulk_commands.VERDICT_SECONDS", 60)


@pytest.fixture
def bank() -> Bank:
    return Bank()


@pytest.fixture
async def site(make_site: MakeSite, bank: Bank) -> Site:
    return await make_site(
        SagaBuilder("asks", output="ok").approval("ok", permission="invoices:approve"),
        SagaBuilder("pays", output="pay").step("pay", bank.pay, retry=Retry(max_attempts=1)),
        SagaBuilder("unsafe").step(
            "pay", bank.pay, safety="not_safe_to_retry", compensation_policy="manual", retry=Retry(max_attempts=1)
        ),
        SagaBuilder("waits", output="paid").signal("paid", "paid"),
        SagaBuilder("lost").step("pay", silent, safety="not_safe_to_retry", compensation_policy="manual"),
        SagaBuilder("booked")
        .step("book", fine, compensate=fine, compensation_policy="manual")
        .step("pay", refuse, depends_on=["book"]),
    )


async def start(client: httpx2.AsyncClient, definition: str, input: Any = None) -> str:
    answer = await client.post("/v1/executions", json={"definition": definition, "input": input})
    assert answer.status_code == 201, answer.text
    id: str = answer.json()["execution_id"]
    return id


async def stands(client: httpx2.AsyncClient, id: str, status: str) -> dict[str, Any]:
    found = await until(lambda: client.get(f"/v1/executions/{id}"), lambda answer: answer.json()["status"] == status)
    document: dict[str, Any] = found.json()
    return document


async def test_an_approver_with_the_permission_approves(site: Site) -> None:
    operator = await site.client("acme", "operator")
    id = await start(operator, "asks")
    await stands(operator, id, "waiting_approval")
    at = f"/v1/executions/{id}/steps/ok:approve"

    assert (await operator.post(at)).status_code == 403
    plain = await (await site.client("acme", "approver")).post(at)
    assert (plain.status_code, plain.json()["code"]) == (403, "forbidden")
    assert "invoices:approve" in plain.json()["detail"]

    approver = await site.client("acme", "approver", "invoices:approve")
    approved = await approver.post(at, json={"comment": "fine", "data": {"limit": 5}})
    assert approved.status_code == 200, approved.text
    assert (await stands(operator, id, "succeeded"))["output"] == {"limit": 5}
    again = await approver.post(at)
    assert (again.status_code, again.json()["code"]) == (409, "not_waiting")
    assert again.json()["hint"] == "nothing in this execution waits for a decision"


async def test_a_rejection_fails(site: Site) -> None:
    admin = await site.client()
    id = await start(admin, "asks")
    await stands(admin, id, "waiting_approval")
    assert (await admin.post(f"/v1/executions/{id}/steps/ok:reject", json={"comment": "no"})).status_code == 200
    assert (await stands(admin, id, "failed"))["error"]["summary"] == "no"


async def test_a_review_is_listed_looked_at_and_resolved(site: Site) -> None:
    admin = await site.client()
    id = await start(admin, "asks")
    await stands(admin, id, "waiting_approval")
    (review,) = (await admin.get("/v1/reviews", params={"kind": "approval"})).json()["items"]
    assert review.keys() == {
        "id", "kind", "execution_id", "step_id", "path", "reason", "permission", "opened_at", "due_at", "state",
        "requests",
    }  # fmt: skip
    assert (review["execution_id"], review["state"]) == (id, "open")
    other = await start(admin, "asks")
    await stands(admin, other, "waiting_approval")
    assert (await admin.get("/v1/reviews", params={"execution_id": id})).json()["items"] == [review]
    too_early = await admin.post(f"/v1/executions/{id}:retry", json={"reason": "x"})
    assert (too_early.status_code, too_early.json()["hint"].split(":")[0]) == (409, "a person has to decide first")
    assert (await admin.post(f"/v1/executions/{other}/steps/ok:approve")).status_code == 200

    wrong = await admin.post(f"/v1/reviews/{review['id']}:resolve", json={"resolution": "compensate", "reason": "x"})
    assert (wrong.status_code, wrong.json()["code"]) == (409, "bad_resolution")
    resolved = await admin.post(f"/v1/reviews/{review['id']}:resolve", json={"resolution": "completed", "reason": "ok"})
    assert (resolved.status_code, resolved.json()["state"]) == (200, "resolved")
    assert (await admin.get("/v1/reviews")).json()["items"] == []
    closed = (await admin.get("/v1/reviews", params={"state": "resolved", "execution_id": id})).json()["items"]
    assert [each["id"] for each in closed] == [review["id"]]
    assert (
        await admin.post("/v1/reviews/nothing.1:resolve", json={"resolution": "dismiss", "reason": "x"})
    ).status_code == 404


@pytest.mark.requirement("I5")
async def test_all_that_waits_for_a_person_is_in_one_place(site: Site) -> None:
    """Approvals, outcomes that nobody knows, undos that want consent, and what failed for good."""
    admin = await site.client()
    await stands(admin, await start(admin, "asks"), "waiting_approval")
    await stands(admin, await start(admin, "pays", 7), "failed")
    await stands(admin, await start(admin, "lost"), "waiting_approval")
    await stands(admin, await start(admin, "booked"), "waiting_approval")
    found = (await admin.get("/v1/reviews")).json()["items"]
    assert [each["kind"] for each in found] == ["approval", "dead_letter", "indeterminate", "compensation"]
    letters = (await admin.get("/v1/reviews", params={"kind": "dead_letter"})).json()["items"]
    assert [each["id"] for each in letters] == [found[1]["id"]]


@pytest.mark.requirement("D4")
async def test_a_signal_is_sent_once_under_its_key(site: Site) -> None:
    client = await site.client("acme", "operator")
    id = await start(client, "waits")
    at = f"/v1/executions/{id}/signals/paid"
    first = await client.post(at, json={"payload": {"amount": 5}}, headers={"Idempotency-Key": "s-1"})
    assert first.status_code == 200, first.text
    assert (await stands(client, id, "succeeded"))["output"] == {"amount": 5}
    second = await client.post(at, json={"payload": {"amount": 5}}, headers={"Idempotency-Key": "s-1"})
    assert (second.status_code, second.headers["idempotency-replayed"]) == (200, "true")
    other = await client.post(at, json={"payload": {"amount": 6}}, headers={"Idempotency-Key": "s-1"})
    assert other.status_code == 422
    late = await client.post(at)
    assert (late.status_code, late.json()["code"]) == (409, "terminal")


async def test_signals_beyond_what_is_kept_are_409(site: Site) -> None:
    operator = await site.client("acme", "operator")
    id = await start(operator, "waits")
    for n in range(4):
        kept = await operator.post(f"/v1/executions/{id}/signals/early-{n}", json={"payload": ["x" * 100_000] * 2})
        assert kept.status_code == 200, kept.text
    body = {"payload": ["x" * 100_000] * 2, "id": "late"}
    await operator.post(f"/v1/executions/{id}/signals/early-4", json=body)
    refused = await operator.post(f"/v1/executions/{id}/signals/early-5", json={"payload": ["x" * 100_000] * 2})
    assert (refused.status_code, refused.json()["code"]) == (409, "too_many_signals")
    known = await operator.post(f"/v1/executions/{id}/signals/early-4", json=body)
    assert known.status_code == 200, "it was kept before"
    assert (await operator.post(f"/v1/executions/{id}/signals/paid")).status_code == 200


@pytest.mark.parametrize("names", [("ab", "a\nb"), ("a?b", "a%3Fb")])
async def test_signals_with_names_that_look_alike_are_two(site: Site, names: tuple[str, str]) -> None:
    client = await site.client("acme", "operator")
    id = await start(client, "waits")
    for name in names:
        at = f"/v1/executions/{id}/signals/{quote(name, safe='')}"
        answer = await client.post(at, headers={"Idempotency-Key": "s-1"})
        assert (answer.status_code, "idempotency-replayed" in answer.headers) == (200, False), answer.text


@pytest.mark.requirement("D4")
async def test_the_longest_name_that_a_signal_can_have(site: Site) -> None:
    client = await site.client("acme", "operator")
    at = f"/v1/executions/{await start(client, 'waits')}/signals/{quote('😀' * 256)}"
    for _ in range(2):
        answer = await client.post(at, headers={"Idempotency-Key": "k" * 255})
        assert answer.status_code == 200, answer.text


# -- Dead letters ------------------------------------------------------------------------------------------------------


async def test_a_dead_letter_is_reprocessed(site: Site, bank: Bank) -> None:
    client = await site.client("acme", "operator")
    id = await start(client, "pays", 7)
    await stands(client, id, "failed")
    (letter,) = (await client.get("/v1/dlq")).json()["items"]
    assert letter.keys() == {
        "id", "execution_id", "step_id", "path", "error_class", "error_summary", "attempts", "created_at", "state",
        "requests",
    }  # fmt: skip
    assert (letter["execution_id"], letter["step_id"], letter["error_class"]) == (id, "pay", "NON_RETRYABLE")
    single = (await client.get(f"/v1/dlq/{letter['id']}")).json()
    assert " in Bank.pay" in single.pop("error_trace")
    assert single == letter
    for none in ("nix", f"{id}.nix"):
        missing = await client.get(f"/v1/dlq/{none}")
        assert (missing.status_code, missing.json()["detail"]) == (404, f"There is no dead letter '{none}'.")

    bank.broken = False
    at = f"/v1/dlq/{letter['execution_id']}"  # its execution's id will do, as for looking
    done = await client.post(f"{at}:reprocess", json={"reason": "the account is open again"})
    assert (done.status_code, done.json()["state"]) == (200, "resolved"), done.text
    found = await stands(client, id, "succeeded")
    assert (found["output"], found["attempt_count"]) == (7, 2)
    again = await client.post(f"/v1/dlq/{letter['id']}:reprocess", json={"reason": "once more"})
    assert again.status_code == 409


async def test_a_dead_letter_is_discarded(site: Site) -> None:
    client = await site.client("acme", "operator")
    id = await start(client, "pays", 7)
    await stands(client, id, "failed")
    (letter,) = (await client.get("/v1/dlq")).json()["items"]
    done = await client.post(f"/v1/dlq/{letter['id']}:discard", json={"reason": "a test"})
    assert (done.status_code, done.json()["state"]) == (200, "resolved")
    assert (await client.get("/v1/dlq")).json()["items"] == []


@pytest.mark.requirement("I4")
async def test_dead_letters_are_reprocessed_by_filter(site: Site, bank: Bank) -> None:
    client = await site.client("acme", "operator")
    ids = [await start(client, "pays", number) for number in range(3)]
    for id in ids:
        await stands(client, id, "failed")
    none = await client.post("/v1/dlq:reprocess", json={"error_class": "TRANSIENT", "limit": 10, "reason": "x"})
    assert none.json() == {"reprocessed": [], "pending": [], "refused": [], "next_cursor": None}

    bank.broken = False
    body = {"definition": "pays", "error_class": "NON_RETRYABLE", "limit": 2, "reason": "the bank is back"}
    done = (await client.post("/v1/dlq:reprocess", json=body)).json()
    assert (len(done["reprocessed"]), done["refused"]) == (2, [])
    for id in ids[:2]:
        await stands(client, id, "succeeded")
    assert len((await client.get("/v1/dlq")).json()["items"]) == 1


async def test_what_time_does_not_allow_stays_for_another_request(
    site: Site, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that took longer than its key is kept for would be carried out twice."""
    client = await site.client("acme", "operator")
    for number in range(3):
        await stands(client, await start(client, "pays", number), "failed")
    bank.broken = False
    monkeypatch.setattr("tenuto.api.bulk_commands.CONCURRENCY", 1)
    monkeypatch.setattr("tenuto.api.bulk_commands.monotonic", count(0, 20).__next__)  # each round takes all the time
    body = {"definition": "pays", "limit": 3, "reason": "x"}
    done = (await client.post("/v1/dlq:reprocess", json=body)).json()
    assert (len(done["reprocessed"]), done["refused"]) == (1, [])
    assert len((await client.get("/v1/dlq")).json()["items"]) == 2
    rest = (await client.post("/v1/dlq:reprocess", json={**body, "cursor": done["next_cursor"]})).json()
    assert len(rest["reprocessed"]) == 1


async def test_those_behind_letters_that_are_refused_have_their_turn(site: Site, bank: Bank) -> None:
    """Letters that stay are the oldest in the next request, too: a cursor goes past them."""
    client = await site.client("acme", "operator")
    for name in ("unsafe", "unsafe", "pays"):
        await stands(client, await start(client, name, 7), "failed")
    letters = [row["id"] for row in (await client.get("/v1/dlq")).json()["items"]]
    bank.broken = False
    body = {"error_class": "NON_RETRYABLE", "limit": 2, "reason": "the bank is back"}
    first = (await client.post("/v1/dlq:reprocess", json=body)).json()
    assert [(each["id"], each["code"]) for each in first["refused"]] == [(id, "forbidden") for id in letters[:2]]
    assert (await client.post("/v1/dlq:reprocess", json=body)).json() == first
    rest = (await client.post("/v1/dlq:reprocess", json={**body, "cursor": first["next_cursor"]})).json()
    assert rest == {"reprocessed": letters[2:], "pending": [], "refused": [], "next_cursor": None}

    other = {**body, "error_class": "TRANSIENT", "cursor": first["next_cursor"]}
    refused = await client.post("/v1/dlq:reprocess", json=other)
    assert (refused.status_code, refused.json()["errors"][0]["code"]) == (400, "bad_cursor")


async def test_a_failed_execution_is_retried(site: Site, bank: Bank) -> None:
    client = await site.client("acme", "operator")
    id = await start(client, "pays", 7)
    await stands(client, id, "failed")
    bank.broken = False
    retried = await client.post(f"/v1/executions/{id}:retry", json={"from": "pay", "reason": "mended"})
    assert retried.status_code == 200, retried.text
    await stands(client, id, "succeeded")
    assert (await client.post(f"/v1/executions/{id}:retry", json={"reason": "more"})).status_code == 409
    history = (await client.get(f"/v1/executions/{id}/history")).json()["items"]
    assert [(row["status"], row["run"], row["attempt_number"]) for row in history] == [
        ("failed", 1, 1),
        ("succeeded", 2, 2),
    ]


async def test_what_is_not_safe_to_retry_is_retried_by_an_admin_alone(site: Site, bank: Bank) -> None:
    operator, admin = await site.client("acme", "operator"), await site.client()
    id = await start(operator, "unsafe", 7)
    await stands(operator, id, "failed")
    at = f"/v1/executions/{id}/steps/pay:retry"
    refused = await operator.post(at, json={"reason": "please"})
    assert (refused.status_code, "effects:again" in refused.json()["detail"]) == (403, True)
    assert (await operator.post(f"/v1/executions/{id}:retry", json={"reason": "please"})).status_code == 403
    bank.broken = False
    assert (await admin.post(at, json={"reason": "looked at it"})).status_code == 200
    await stands(operator, id, "succeeded")


@pytest.mark.parametrize("role", ["operator", "admin"])
async def test_who_may_not_make_effects_again_is_not_told_how_it_stands(site: Site, bank: Bank, role: str) -> None:
    client = await site.client("acme", role)
    bank.broken = False
    id = await start(client, "pays", 7)
    await stands(client, id, "succeeded")
    body = {"from": "pay", "again": True, "reason": "please"}
    refused = await client.post(f"/v1/executions/{id}:retry", json=body)
    assert refused.status_code == (409 if role == "admin" else 403), refused.text


@pytest.mark.parametrize(
    ("path", "body", "missing"),
    [
        ("/v1/executions/x:retry", {}, ["/reason"]),
        ("/v1/executions/x/steps/pay:retry", {"again": True}, ["/reason"]),
        ("/v1/reviews/x.1:resolve", {"resolution": "dismiss"}, ["/reason"]),
        ("/v1/reviews/x.1:resolve", {"resolution": "retry", "reason": ""}, ["/reason"]),
        ("/v1/dlq:reprocess", {"definition": "pays"}, ["/limit", "/reason"]),
        ("/v1/dlq:reprocess", {"limit": 1, "reason": " "}, ["/reason"]),
        ("/v1/dlq/x.1:reprocess", {}, ["/reason"]),
        ("/v1/dlq/x.1:discard", {"reason": ""}, ["/reason"]),
        ("/v1/executions/x:retry", {"reason": "\n"}, ["/reason"]),
        ("/v1/executions/x/steps/pay:retry", {"from": "nonsense", "reason": "y"}, ["/from"]),
    ],
)
async def test_what_cannot_be_taken_back_wants_a_reason(
    site: Site, path: str, body: dict[str, Any], missing: list[str]
) -> None:
    refused = await (await site.client()).post(path, json=body)
    assert (refused.status_code, refused.json()["code"]) == (422, "request_invalid")
    assert [each["pointer"] for each in refused.json()["errors"]] == missing


async def test_an_approval_is_resolved_without_a_reason(site: Site) -> None:
    """It answers a question that was asked, as `:approve` does."""
    client = await site.client()
    id = await start(client, "asks")
    await stands(client, id, "waiting_approval")
    (review,) = (await client.get("/v1/reviews")).json()["items"]
    done = await client.post(f"/v1/reviews/{review['id']}:resolve", json={"resolution": "approved"})
    assert (done.status_code, done.json()["state"]) == (200, "resolved"), done.text
