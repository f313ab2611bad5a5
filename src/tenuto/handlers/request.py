"""The built-in handler `http`: sends one request; the response is the step's result."""

import base64
from collections.abc import Iterable
from typing import Any, Final, TypedDict

import httpx2
import msgspec

from tenuto.authoring.context import SagaContext
from tenuto.errors import PayloadError
from tenuto.values.codec import encode
from tenuto.values.http_responses import read_body

from .given import HttpRequest
from .outgoing import Outgoing, bad_with, check_headers, read_with, statuses, target_of
from .settings import HandlerSettings

MAX_ANSWER: Final = 192 * 1024  # longer bodies do not fit into a result

# Response headers that contain credentials or are useless in a result.
_NOT_KEPT: Final = frozenset(
    {"authentication-info", "proxy-authenticate", "proxy-authentication-info", "set-cookie", "set-cookie2"}
)


class HttpAnswer(TypedDict):
    """`body` is the decoded JSON, else text, else `{"base64": …}`. `cut` is true if it was too long and is left out."""

    status: int
    headers: dict[str, str]
    body: Any
    cut: bool


class _Cutting(Outgoing):
    """Reads only the beginning of a response that is too long for a result."""

    is_cut = False

    async def _received(self, response: httpx2.Response) -> bytes:
        content, self.is_cut = await read_body(response, MAX_ANSWER)
        return content


async def call(given: object, ctx: SagaContext, settings: HandlerSettings, client: httpx2.AsyncClient) -> HttpAnswer:
    request = read_with(given, HttpRequest, "http")
    target = target_of(request.url, "http")
    check_headers((*request.headers, *request.secret_headers), "http")
    secrets = {name: settings.secret(secret, target, ctx.owner) for name, secret in request.secret_headers.items()}
    outgoing = _Cutting(ctx, classify=statuses(request.classify, "http"), client=client)
    response = await outgoing.request(
        request.method.upper(),
        request.url,
        headers={**_kind(request), **request.headers, **secrets},
        params=request.query or None,
        timeout=client.timeout,
        **_content(request),
    )
    return _answer(response, secrets.values(), is_cut=outgoing.is_cut)


def _kind(request: HttpRequest) -> dict[str, str]:
    return {} if request.json is msgspec.UNSET else {"content-type": "application/json"}


def _content(request: HttpRequest) -> dict[str, Any]:
    if request.json is not msgspec.UNSET and request.text is not None:
        raise bad_with("http", "either `json` or `text`, not both")
    if request.text is not None:
        return {"content": request.text.encode()}
    return {} if request.json is msgspec.UNSET else {"content": msgspec.json.encode(request.json)}


def _answer(response: httpx2.Response, secrets: Iterable[str], *, is_cut: bool) -> HttpAnswer:
    """Returns the result of a successful request, even if its body cannot be used: the server has carried it out."""
    answer: HttpAnswer = {
        "status": response.status_code,
        "headers": {name: _masked(value, secrets) for name, value in response.headers.items() if name not in _NOT_KEPT},
        "body": _body(response.content, response.headers.get("content-type", ""), secrets),
        "cut": is_cut,
    }
    try:
        encode(answer)
    except PayloadError:  # too long, or nested too deep
        answer["cut"] = True
    return {**answer, "body": None} if answer["cut"] else answer


def _masked(text: str, secrets: Iterable[str]) -> str:
    for secret in secrets:  # some services repeat the request
        text = text.replace(secret, "[secret]")
    return text


def _body(content: bytes, kind: str, secrets: Iterable[str]) -> Any:
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(content).decode()}
    text = _masked(text, secrets)
    if "json" in kind.lower():
        try:
            return msgspec.json.decode(text)
        except msgspec.DecodeError:
            return text
        except RecursionError:
            raise PayloadError(
                "the JSON of the response is nested too deep to be read", code="invalid_result"
            ) from None
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")
