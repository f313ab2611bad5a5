"""Definitions that belong to a tenant: of the deployment's secrets they have those that are meant for them."""

from dataclasses import replace
from typing import Any

import pytest

from tenuto import Engine
from tenuto.handlers.settings import HandlerSettings, Secret
from tests.servers.smtp import Mail
from tests.servers.web import Web

from .conftest import MakeEngine
from .documents import document, run

KEY = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
HERE = ("here",)  # stands for the server of the test


def of(engine: Engine, tenant: str) -> Engine:
    return engine.scoped(tenant=tenant, actor=f"author of {tenant}")


@pytest.mark.parametrize(
    ("tenant", "secret", "sent"),
    [
        ("default", Secret("canary-7"), True),
        ("acme", Secret("canary-7"), False),
        ("acme", Secret("canary-7", HERE), False),
        ("acme", Secret("canary-7", (), ("acme",)), False),
        ("acme", Secret("canary-7", HERE, ("other",)), False),
        ("acme", Secret("canary-7", HERE, ("acme",)), True),
        ("acme", Secret("canary-7", HERE, ("*",)), True),
    ],
)
async def test_a_tenants_definition_has_the_secrets_that_are_for_it(
    make_engine: MakeEngine, server: Web, tenant: str, secret: Secret, sent: bool
) -> None:
    here = tuple(server.url.removeprefix("http://") for _ in secret.hosts)
    engine = of(await make_engine(secrets={"BANK": replace(secret, hosts=here)}), tenant)
    result = await run(engine, "http", {"url": server.url, "secret_headers": {"X-Key": "bank"}})
    assert [request[2].get("x-key") for request in server.requests] == (["canary-7"] if sent else [])
    assert result.succeeded == sent
    assert sent or result.steps["work"].error_code == "secret_missing"


async def test_what_all_may_start_has_the_deployments_secrets_whoever_starts_it(
    make_engine: MakeEngine, server: Web
) -> None:
    engine = await make_engine(secrets={"BANK": Secret("canary-7")})
    await engine.apply(document("http", {"url": server.url, "secret_headers": {"X-Key": "bank"}}))
    assert (await of(engine, "acme").execute("one", {})).succeeded
    assert server.requests[0][2]["x-key"] == "canary-7"


@pytest.mark.parametrize(("tenant", "signed"), [("default", True), ("acme", False)])
async def test_nobody_signs_in_the_name_of_the_deployment(
    make_engine: MakeEngine, server: Web, tenant: str, signed: bool
) -> None:
    engine = of(await make_engine(secrets={"WEBHOOK": Secret(KEY)}), tenant)
    assert (await run(engine, "webhook", {"url": server.url})).succeeded
    assert ("webhook-signature" in server.requests[0][2]) == signed


@pytest.mark.parametrize(
    ("tenant", "sender", "code"),
    [
        ("default", "boss@bank.example", None),
        ("acme", "acme@shop.example", None),
        ("acme", "boss@bank.example", "sender_denied"),
    ],
)
async def test_a_tenants_mail_is_from_the_deployments_domain(
    make_engine: MakeEngine, mail: Mail, tenant: str, sender: str, code: str | None
) -> None:
    engine = of(
        await make_engine(smtp_url=f"smtp://127.0.0.1:{mail.port}", mail_from="Shop <hello@shop.example>"), tenant
    )
    given: dict[str, Any] = {"to": "ann@example.org", "subject": "Paid", "text": "Thanks", "from": sender}
    result = await run(engine, "email", given)
    assert result.steps["work"].error_code == code


def test_whose_secrets_are_is_read_from_the_environment() -> None:
    found = HandlerSettings.from_environment(
        {"TENUTO_SECRET_A": "x", "TENUTO_SECRET_A_HOSTS": "Bank.example", "TENUTO_SECRET_A_TENANTS": "acme, other"}
    )
    assert found.secrets == {"A": Secret("x", ("bank.example",), ("acme", "other"))}
