"""JWTs: those of a configured issuer are taken, and none of the ways to forge one works."""

import base64
import hashlib
import hmac
import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from tenuto import SagaBuilder
from tenuto.access.tokens import Tokens
from tenuto.errors import NotAuthenticated, SettingsError
from tenuto.settings import Issuer, Settings
from tests.service.conftest import MakeSite

ISSUER = "https://id.example"
OTHER = "https://other.example"
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()
STRANGER = rsa.generate_private_key(public_exponent=65537, key_size=2048)
PEM = RSA.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def jwk(key: Any, algorithm: str, id: str) -> dict[str, Any]:
    made: Any = jwt.get_algorithm_by_name(algorithm)
    return {**made.to_jwk(key.public_key(), as_dict=True), "kid": id, "alg": algorithm, "use": "sig"}


@pytest.fixture
def issuer(tmp_path: Path) -> Issuer:
    keys = [jwk(RSA, "RS256", "rsa"), jwk(EC, "ES256", "ec"), jwk(ED, "EdDSA", "ed")]
    return Issuer(
        issuer=ISSUER,
        audience="tenuto",
        jwks_file=written(tmp_path, keys),
        tenants=("acme", "globex"),
        roles=("viewer", "operator", "invoices:approve"),
    )


def written(folder: Path, keys: list[dict[str, Any]]) -> str:
    """The path of a set of these keys."""
    file = folder / "jwks.json"
    file.write_text(json.dumps({"keys": keys}))
    return str(file)


def claims(**changes: Any) -> dict[str, Any]:
    now = int(time.time())
    found = {"iss": ISSUER, "aud": "tenuto", "sub": "ann", "iat": now, "exp": now + 300, "tenant": "acme"}
    found |= {"roles": ["operator"], **changes}
    return {name: value for name, value in found.items() if value is not None}


def signed(key: Any = RSA, algorithm: str = "RS256", kid: str = "rsa", header: Any = None, **changes: Any) -> str:
    return jwt.encode(claims(**changes), key, algorithm, headers={"kid": kid, **(header or {})})


@pytest.mark.parametrize(("key", "algorithm", "kid"), [(RSA, "RS256", "rsa"), (EC, "ES256", "ec"), (ED, "EdDSA", "ed")])
async def test_a_good_token_says_who_it_is(issuer: Issuer, key: Any, algorithm: str, kid: str) -> None:
    found = await Tokens([issuer]).verify(signed(key, algorithm, kid, roles="operator invoices:approve unknown"))
    assert (found.tenant, found.subject) == ("acme", "ann")
    assert found.roles == {"operator", "invoices:approve"}


def unsigned(algorithm: str) -> str:
    parts = [{"alg": algorithm, "typ": "JWT", "kid": "rsa"}, claims()]
    return ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts) + "."


def with_public_key_as_secret() -> str:
    """The classic: the public key, which everybody has, taken for the secret of an HMAC."""
    head = unsigned("HS256").removesuffix(".")
    mac = hmac.new(PEM, head.encode(), hashlib.sha256).digest()
    return f"{head}.{base64.urlsafe_b64encode(mac).decode().rstrip('=')}"


FORGED: dict[str, Callable[[], str]] = {
    "another's key": lambda: signed(STRANGER),
    "another's key, brought along": lambda: signed(STRANGER, header={"jwk": jwk(STRANGER, "RS256", "rsa")}),
    "a place to fetch keys from": lambda: signed(STRANGER, header={"jku": "https://evil.example/keys"}),
    "no signature": lambda: unsigned("none"),
    "no signature, spelt otherwise": lambda: unsigned("nOnE"),
    "the public key as a secret": with_public_key_as_secret,
    "an unknown key": lambda: signed(kid="other"),
    "a key of another algorithm": lambda: signed(kid="ec"),
    "expired": lambda: signed(exp=int(time.time()) - 120),
    "not yet": lambda: signed(nbf=int(time.time()) + 300),
    "for somebody else": lambda: signed(aud="another-service"),
    "of another issuer": lambda: signed(iss="https://evil.example"),
    "no expiry": lambda: signed(exp=None),
    "no subject": lambda: signed(sub=None),
    "an empty subject": lambda: signed(sub=""),
    "a subject that nobody can have": lambda: signed(sub="a" * 256),
    "a subject of two lines": lambda: signed(sub="ann\nbob"),
    "no audience": lambda: signed(aud=None),
    "no issuer": lambda: signed(iss=None),
    "no tenant": lambda: signed(tenant=None),
    "a tenant that is none": lambda: signed(tenant=["acme"]),
    "an empty tenant": lambda: signed(tenant=""),
    "a tenant within another": lambda: signed(tenant="acme/x"),
    "a tenant that no key can have": lambda: signed(tenant="a" * 129),
    "another's tenant": lambda: signed(tenant="initech"),
    "the deployment's tenant": lambda: signed(tenant="default"),
    "every tenant": lambda: signed(tenant="*"),
    "roles in an object": lambda: signed(roles={"admin": False}),
    "another type": lambda: signed(header={"typ": "secevent+jwt"}),
    "too long": lambda: signed(padding="x" * 10_000),
    "no token at all": lambda: "a.b.c",
    "JSON nested too deep": lambda: f"{base64.urlsafe_b64encode(b'[' * 3_000).decode()}.e30.x",
    "half a token": lambda: signed().rpartition(".")[0],
}


@pytest.mark.parametrize("how", FORGED)
async def test_a_forged_token_is_refused_without_saying_why(issuer: Issuer, how: str) -> None:
    with pytest.raises(NotAuthenticated) as caught:
        await Tokens([issuer]).verify(FORGED[how]())
    assert str(caught.value).startswith("The token is not valid.")


async def test_without_issuers_no_token_is_good() -> None:
    with pytest.raises(NotAuthenticated):
        await Tokens([]).verify(signed())


def publish(issuer: Issuer, *keys: dict[str, Any]) -> None:
    write(issuer, json.dumps({"keys": keys}))


def write(issuer: Issuer, text: str) -> None:
    Path(issuer.jwks_file).write_text(text)


def withdraw(issuer: Issuer) -> None:
    Path(issuer.jwks_file).unlink()


async def test_new_keys_are_found_and_looked_for_at_most_so_often(issuer: Issuer) -> None:
    now = 0.0
    tokens = Tokens([issuer], lambda: now)
    await tokens.verify(signed())
    publish(issuer, jwk(STRANGER, "RS256", "new"))
    with pytest.raises(NotAuthenticated):
        await tokens.verify(signed(STRANGER, kid="new"))
    now = 61.0
    assert (await tokens.verify(signed(STRANGER, kid="new"))).subject == "ann"
    with pytest.raises(NotAuthenticated):
        await tokens.verify(signed())  # taken back
    withdraw(issuer)
    now = 1_000.0
    assert (await tokens.verify(signed(STRANGER, kid="new"))).subject == "ann"  # the last known are better than none


@pytest.mark.parametrize("text", ["<html>", "[]", "{}", "[" * 100_000, '{"keys": 5}', '{"keys": [5]}', '"x"'])
async def test_an_issuer_that_answers_nonsense_changes_nothing(issuer: Issuer, text: str) -> None:
    now = 0.0
    tokens = Tokens([issuer], lambda: now)
    await tokens.verify(signed())
    write(issuer, text)
    now = 1_000.0
    assert (await tokens.verify(signed())).subject == "ann"


async def test_whoever_has_a_known_key_does_not_wait_for_an_issuer_that_does_not_answer(issuer: Issuer) -> None:
    now = 0.0
    tokens = Tokens([issuer], lambda: now)
    await tokens.verify(signed())
    withdraw(issuer)
    os.mkfifo(issuer.jwks_file)  # whoever reads it waits until somebody writes
    now = 1_000.0
    for _ in range(3):
        assert (await tokens.verify(signed())).subject == "ann"
    publish(issuer, jwk(STRANGER, "RS256", "new"))
    assert (await tokens.verify(signed(STRANGER, kid="new"))).subject == "ann"


async def test_of_two_issuers_the_actor_says_which(make_site: MakeSite, issuer: Issuer) -> None:
    other = replace(issuer, issuer=OTHER)
    settings = Settings(jwt_issuers=(issuer, other), rate_per_second=0)
    site = await make_site(SagaBuilder("asks").approval("ok"), settings=settings)
    longest = "ł" * 255
    for token in (signed(), signed(iss=OTHER), signed(sub=longest)):
        started = await (await site.bare(token)).post("/v1/executions", json={"definition": "asks"})
        assert started.status_code == 201
    actors = {row["actor"] async for row in site.engine.scoped(tenant="acme", actor="x").audit.rows()}
    assert actors == {f"user:ann@{ISSUER}", f"user:ann@{OTHER}", f"user:{longest}@{ISSUER}"}


async def test_a_token_has_no_role_that_its_issuer_may_not_give(issuer: Issuer) -> None:
    asked = ["admin", "operator", "invoices:approve", "invoices:pay"]
    assert (await Tokens([issuer]).verify(signed(roles=asked))).roles == {"operator", "invoices:approve"}
    assert (await Tokens([issuer]).verify(signed(roles="admin"))).roles == frozenset()


async def test_an_issuer_of_one_tenant_does_not_ask_the_token(issuer: Issuer) -> None:
    fixed = replace(issuer, tenant="acme", tenants=())
    for claimed in ("acme", "globex", "default", None, 7):
        assert (await Tokens([fixed]).verify(signed(tenant=claimed))).tenant == "acme"


@pytest.mark.parametrize(
    ("tenants", "claimed", "accepted"),
    [
        (("*",), "anything", True),
        (("*",), "default", False),
        (("*", "default"), "default", True),
        (("default",), "default", True),
        (("default",), "acme", False),
    ],
)
async def test_the_tenant_of_the_deployment_is_an_issuers_only_by_name(
    issuer: Issuer, tenants: tuple[str, ...], claimed: str, accepted: bool
) -> None:
    tokens = Tokens([replace(issuer, tenants=tenants)])
    if accepted:
        assert (await tokens.verify(signed(tenant=claimed))).tenant == claimed
    else:
        with pytest.raises(NotAuthenticated):
            await tokens.verify(signed(tenant=claimed))


async def test_each_of_two_issuers_has_its_own_tenants(issuer: Issuer) -> None:
    other = replace(issuer, issuer=OTHER, tenants=("initech",), roles=("viewer",))
    tokens = Tokens([issuer, other])
    assert (await tokens.verify(signed())).tenant == "acme"
    assert (await tokens.verify(signed(iss=OTHER, tenant="initech", roles="viewer operator"))).roles == {"viewer"}
    for stolen in (signed(iss=OTHER), signed(tenant="initech")):
        with pytest.raises(NotAuthenticated):
            await tokens.verify(stolen)


@pytest.mark.parametrize(
    "changed",
    [{"tenants": ()}, {"tenant": "acme"}, {"roles": ()}, {"roles": ("root",)}, {"tenants": ("a/b",)}, {"tenant": "*"}],
)
async def test_an_issuer_of_whom_it_is_not_said_what_it_may_is_refused_at_the_start(
    make_site: MakeSite, issuer: Issuer, changed: dict[str, Any]
) -> None:
    with pytest.raises(SettingsError):
        await make_site(settings=Settings(jwt_issuers=(replace(issuer, **changed),)))


async def test_an_issuer_of_every_tenant_is_the_only_one(issuer: Issuer) -> None:
    every = replace(issuer, tenants=("*",))
    Tokens([every])
    with pytest.raises(SettingsError, match="several issuers"):
        Tokens([every, replace(issuer, issuer=OTHER)])


@pytest.mark.parametrize("use", [{"use": "enc"}, {"key_ops": ["encrypt"]}, {"key_ops": "verify"}, {"use": None}])
async def test_a_key_that_is_not_for_signatures_is_not_used(issuer: Issuer, use: dict[str, Any]) -> None:
    publish(issuer, {**jwk(RSA, "RS256", "rsa"), **use}, jwk(EC, "ES256", "ec"))
    tokens = Tokens([issuer])
    with pytest.raises(NotAuthenticated):
        await tokens.verify(signed())
    assert (await tokens.verify(signed(EC, "ES256", "ec"))).subject == "ann"


async def test_of_two_keys_of_one_id_the_one_for_signatures_counts(issuer: Issuer) -> None:
    publish(
        issuer, {**jwk(RSA, "RS256", "rsa"), "key_ops": ["verify"]}, {**jwk(STRANGER, "RS256", "rsa"), "use": "enc"}
    )
    assert (await Tokens([issuer]).verify(signed())).subject == "ann"


async def test_an_issuer_has_claims_of_its_own(issuer: Issuer) -> None:
    """What names the tenant and the roles differs from issuer to issuer; the usual names mean nothing then."""
    own = replace(issuer, tenant_claim="org", roles_claim="https://id.example/groups")
    groups: dict[str, Any] = {"https://id.example/groups": ["viewer"]}
    found = await Tokens([own]).verify(signed(org="globex", **groups))
    assert (found.tenant, found.roles) == ("globex", frozenset({"viewer"}))
    with pytest.raises(NotAuthenticated):
        await Tokens([own]).verify(signed())  # which has no `org`


async def test_a_token_over_http(make_site: MakeSite, issuer: Issuer) -> None:
    site = await make_site(SagaBuilder("asks").approval("ok"), settings=Settings(jwt_issuers=(issuer,)))
    client = await site.bare(signed())
    started = await client.post("/v1/executions", json={"definition": "asks"})
    assert (started.status_code, started.json()["tenant_id"]) == (201, "acme")
    (row,) = [row async for row in site.engine.scoped(tenant="acme", actor="x").audit.rows()]
    assert row["actor"] == "user:ann"
    assert (await client.get("/v1/audit")).status_code == 403
    assert (await (await site.bare(signed(STRANGER))).get("/v1/executions")).status_code == 401
