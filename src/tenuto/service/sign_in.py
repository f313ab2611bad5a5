"""Endpoints of identity: who is calling, and the sign-in sessions of the console."""

from typing import Annotated

from fastapi import Path
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from tenuto.access.keys import PREFIX, actor_of
from tenuto.access.sign_in_sessions import NewSession, Session
from tenuto.api.engine import Engine
from tenuto.api.identity import identity, own_sessions_of, session_document
from tenuto.errors import NotAuthenticated, NotPermitted
from tenuto.storage.registry import KeyRow
from tenuto.views import IdentityDocument, rfc3339

from .http.caller import Called, Service, service_of
from .http.endpoints import EndpointRouter
from .http.openapi import documented
from .http.request_models import ReauthenticateBody, SignInBody
from .http.responses import Cursor, Limit, json_response, page_of_rows
from .http.session_cookie import check_sign_in, csrf_token

router = EndpointRouter(tags=["identity"])


@router.common_operation(
    "GET",
    "/v1/me",
    summary="Get the caller's identity, roles and permissions",
    responses=documented({200: "IdentityDocument"}),
)
async def get_identity(caller: Called) -> Response:
    """`csrf_token` is needed for writes that authenticate with a session's cookie, in the header `X-Tenuto-CSRF`."""
    token = caller.credential.session
    if caller.session is not None and token is not None:
        return json_response(_signed_in(caller.engine, caller.session, token))
    is_key = PREFIX in (caller.credential.authorization or "")
    return json_response({**identity(caller.engine.scope), "method": "key" if is_key else "token"})


def _signed_in(engine: Engine, session: Session, token: str) -> IdentityDocument:
    return {
        **identity(engine.scope),
        "csrf_token": csrf_token(token),
        "expires_at": rfc3339(session.expires_at),
        "method": "session",
    }


@router.open_operation(
    "POST",
    "/v1/session",
    status_code=201,
    summary="Sign in: open a session for a browser",
    responses=documented({201: "IdentityDocument"}),
)
async def sign_in(body: SignInBody, request: Request) -> Response:
    """Sets the session's cookie. `key` is an API key; `token` is that of a sign-in link, which works once. If the
    request has a session already, that one ends."""
    scope = request.scope
    check_sign_in(scope)
    service = service_of(scope)
    cookies = service.authentication.cookies
    cookies.check_address(scope)
    token, session = await _opened(service, body)
    await _end_previous(service, scope)
    principal, _ = await service.authentication.authenticator.sign_in(token)
    document = _signed_in(service.engine_for(principal), session, token)
    return json_response(document, 201, {"Set-Cookie": cookies.written(scope, token)})


async def _opened(service: Service, body: SignInBody) -> NewSession:
    if body.key is None:
        return await service.sessions.open_with_link(body.token or "")
    return await service.sessions.open_with_key(await _key(service, body.key))


async def _key(service: Service, token: str) -> KeyRow:
    key = await service.engine.keys.find(token, max_age=0)
    if key is None:
        raise NotAuthenticated("The API key is not valid.", hint="ask an administrator for a new one")
    return key


async def _end_previous(service: Service, scope: Scope) -> None:
    token = service.authentication.cookies.read(scope)
    session = None if token is None else await service.sessions.find(token, max_age=0)
    if session is not None:
        await service.sessions.end(session)


@router.common_operation(
    "POST",
    "/v1/session:reauthenticate",
    summary="Sign in again: replace the session of this request",
    responses=documented({200: "IdentityDocument"}, 403, 422),
)
async def reauthenticate(body: ReauthenticateBody, caller: Called, request: Request) -> Response:
    """Proves again who uses the browser. `key` is an API key of the same actor and tenant as the session. The new
    session has another cookie and another `csrf_token`, and counts as signed in now; the previous one ends."""
    service, previous = caller.service, caller.session
    if previous is None:
        raise NotPermitted("This request has no sign-in session.", hint="sign in with `POST /v1/session`")
    service.authentication.count_unknown(request.scope)
    key = await _key(service, body.key)
    if (key.tenant, actor_of(key)) != (previous.tenant, previous.actor):
        raise NotPermitted(
            f"The API key is not that of {previous.actor}, whose session this is.",
            hint="sign out, then sign in with the other key",
        )
    token, session = await service.sessions.open_with_key(key)
    await service.sessions.end(previous)
    principal, _ = await service.authentication.authenticator.sign_in(token)
    document = _signed_in(service.engine_for(principal), session, token)
    cookie = service.authentication.cookies.written(request.scope, token)
    return json_response(document, headers={"Set-Cookie": cookie})


@router.common_operation(
    "DELETE",
    "/v1/session",
    status_code=204,
    summary="Sign out: end the session of this request",
    responses=documented({}),
)
async def sign_out(caller: Called, request: Request) -> Response:
    """A request that authenticates otherwise has no session, and this changes nothing."""
    if caller.session is not None:
        await caller.service.sessions.end(caller.session)
    cleared = caller.service.authentication.cookies.cleared(request.scope)
    return Response(status_code=204, headers={"Set-Cookie": cleared})


@router.common_operation(
    "GET",
    "/v1/sessions",
    summary="List sign-in sessions",
    responses=documented({200: "[SessionDocument]"}, 422),
)
async def list_sessions(caller: Called, cursor: Cursor = None, limit: Limit = 50) -> Response:
    """All sessions of the tenant for admins (`sessions:write`), otherwise those of the same actor."""
    found = await caller.service.sessions.list(caller.principal.tenant)
    own = own_sessions_of(caller.engine.scope)
    current = None if caller.session is None else caller.session.id
    rows = [session_document(each, is_current=each.id == current) for each in found if own in (None, each.actor)]
    return page_of_rows("sessions", rows, "id", cursor, limit)


@router.common_operation(
    "POST",
    "/v1/sessions/{id:plain}:revoke",
    status_code=204,
    summary="End a sign-in session",
    responses=documented({}, 404),
)
async def revoke_session(id: Annotated[str, Path(max_length=64)], caller: Called) -> Response:
    """Another actor's session needs `sessions:write`."""
    principal, own = caller.principal, own_sessions_of(caller.engine.scope)
    await caller.service.sessions.revoke(id, tenant=principal.tenant, actor=principal.actor, of=own)
    return Response(status_code=204)
