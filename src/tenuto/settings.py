"""Settings: `TENUTO_*` environment variables, then `tenuto.toml`, then defaults. Each has a source."""

import json
import os
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, asdict, dataclass, field, fields
from difflib import get_close_matches
from ipaddress import ip_network
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, get_args
from urllib.parse import urlsplit

from .errors import Problem, SettingsError
from .values.durations import milliseconds
from .values.names import DEFAULT_TENANT, TENANT, Role, is_role
from .values.redaction import redact, redact_url

T = TypeVar("T")

# Reserved for later versions. Setting one is an error, so that it is not ignored silently.
LATER = ("ledger_url", "blobs_url", "planner_url")
PREFIX = "TENUTO_"
FILE = "tenuto.toml"
DEFAULT_URL = "sqlite:///tenuto.db"

FourEyes = Literal["approvals", "again", "unsafe_retry", "credits"]
WORDS: Mapping[str, tuple[str, ...]] = {
    "log_format": ("auto", "json", "text"),
    "log_level": ("DEBUG", "INFO", "WARNING", "ERROR"),
    "traces": ("none", "otlp"),
}


GIVEN = "given"  # the source of an explicit argument
MEND = "mend the variable or the line of the file that is named"

# The smallest and largest value of numbers.
BOUNDS: Mapping[str, tuple[float, float]] = {
    "slots": (1, 100_000),
    "threads": (1, 10_000),
    "port": (0, 65_535),
    "metrics_port": (0, 65_535),
    "key_days": (0, 36_500),
    "traces_sample": (0, 1),
    "max_body_bytes": (1, 2**31),
    "body_seconds": (0.1, 3_600),
    "max_json_depth": (1, 1_000),
    "max_json_nodes": (1, 10_000_000),
    "max_requests": (0, 1_000_000),
    "max_connections_per_address": (0, 1_000_000),
    "rate_per_second": (0, 1e9),
    "rate_burst": (1, 10**9),
    "tenant_rate_per_second": (0, 1e9),
    "tenant_rate_burst": (1, 10**9),
    "verdict_seconds": (0, 3_600),
    "answer_seconds": (0.1, 3_600),
}
ANY_TENANT = "*"
# The shortest duration, in milliseconds.
TIMES: Mapping[str, int] = {
    "lease": 1_000,
    "shutdown_grace": 0,
    "retention": 1,
    "console_idle": 1_000,
    "console_max_age": 1_000,
    "protocols_poll": 100,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Issuer:
    """An issuer of accepted JWTs. Keys come from `jwks_url` (https) or from `jwks_file`, never from a token.

    Its tokens are valid for `tenant`, or for the tenants in `tenants` that their claim names; `"*"` means every tenant
    except `default`. They have those roles of their claim that are in `roles`.
    """

    issuer: str
    audience: str
    jwks_url: str = ""
    jwks_file: str = ""
    tenant_claim: str = "tenant"
    roles_claim: str = "roles"
    tenant: str = ""
    tenants: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()

    def accepts(self, tenant: str) -> bool:
        """Returns whether its tokens may name this tenant."""
        return tenant in self.tenants or (ANY_TENANT in self.tenants and tenant != DEFAULT_TENANT)


def _setting(doc: str, default: T, *, secret: bool = False) -> T:
    value: T = field(default=default, metadata={"doc": doc, "secret": secret})
    return value


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The effective settings.

    `TENUTO_MAX_BODY_BYTES` in the environment is `max_body_bytes` here and in `tenuto.toml`.
    """

    url: str = _setting("where executions live: memory://, sqlite:///…, postgresql://…", DEFAULT_URL)
    app: str = _setting("MODULE[:NAME] with the sagas and handlers to register", "")
    queues: tuple[str, ...] = _setting("queues whose steps a worker runs", ("default",))
    lease: str = _setting("how long a process may be silent before others take its executions over", "15s")
    shutdown_grace: str = _setting("how long running handlers may take to end when a process is stopped", "30s")
    slots: int = _setting("async handlers that one process runs at once", 200)
    threads: int = _setting("plain `def` handlers that one process runs at once", 32)
    retention: str = _setting("how long executions are kept after their end, as in 90d; empty is for ever", "")
    step_overrides: tuple[tuple[str, Mapping[str, object]], ...] = _setting(
        "timeout, retry and limits of steps, in place of those of the plan: a table in the file, JSON in the variable",
        (),
    )
    messages: tuple[str, ...] = _setting("what is written to the outbox: execution.finished, step.*, or *", ())

    host: str = _setting("address that the service listens on", "127.0.0.1")
    port: int = _setting("port that the service listens on", 8080)
    public_url: str = _setting(
        "the URL at which browsers reach the service, with the path that a proxy strips: https://example.org/tenuto", ""
    )
    trusted_proxies: tuple[str, ...] = _setting(
        "proxies (addresses or CIDR) whose X-Forwarded-For names the client; without any, the header is ignored", ()
    )
    max_connections_per_address: int = _setting(
        "connections from one client address, trusted proxies apart; 0 is no limit", 1_000
    )
    open_routes: bool = _setting("/metrics, /healthz, /readyz, /openapi.json and /docs need no key", True)
    console: bool = _setting("serve the console at /", True)
    console_idle: str = _setting("how long a sign-in session of the console lasts without a request", "30m")
    console_max_age: str = _setting("how long a sign-in session of the console lasts at most", "12h")
    jwt_issuers: tuple[Issuer, ...] = _setting(
        "issuers whose JWTs are accepted: tables in the file, JSON in the variable", ()
    )
    key_days: int = _setting("days until a new API key expires, unless it says otherwise; 0 is never", 90)
    four_eyes: tuple[FourEyes, ...] = _setting("what a second person must say too: approvals, again, unsafe_retry", ())

    log_level: str = _setting("what is logged: DEBUG, INFO, WARNING or ERROR, and what is above it", "INFO")
    log_format: str = _setting("how: json, text, or auto, which is text on a terminal", "auto")
    traces: str = _setting("spans: none, or otlp, to where the OTEL_EXPORTER_OTLP_* variables say", "none")
    traces_sample: float = _setting("the part of traces that is kept, unless the caller has decided", 1.0)
    metrics_port: int = _setting("where a worker answers /metrics, /healthz and /readyz; 0 is nowhere", 0)

    max_body_bytes: int = _setting("size of a request's body at most", 1024 * 1024)
    body_seconds: float = _setting("how long a request's body may take to arrive", 10.0)
    max_json_depth: int = _setting("how deep a request's JSON may be nested", 32)
    max_json_nodes: int = _setting("how many values a request's JSON may hold", 10_000)
    max_requests: int = _setting("requests that one process has under way at once; 0 is no limit", 256)
    rate_per_second: float = _setting("requests a second of one credential to one process; 0 is no limit", 1_000.0)
    rate_burst: int = _setting("requests of one credential at once, before the rate counts", 2_000)
    tenant_rate_per_second: float = _setting("the same of all of one tenant; rate_per_second 0 lifts both", 3_000.0)
    tenant_rate_burst: int = _setting("requests of one tenant at once, before its rate counts", 6_000)
    verdict_seconds: float = _setting("how long a command waits for its verdict before it answers 202", 5.0)
    answer_seconds: float = _setting("how long a request may take before it is given up with 503", 30.0)

    server: str = _setting("the service that client commands talk to; without it they work on the url", "")
    api_key: str = _setting("the key that clients send to the server", "", secret=True)

    protocols: str = _setting(
        "the protocols of the command gateway: a JSON file, a folder of them, or an https URL", ""
    )
    protocols_poll: str = _setting("how often the protocols are read again", "30s")
    bus_url: str = _setting("where directives are published: empty is the embedded bus", "", secret=True)
    callback_keys: tuple[str, ...] = _setting(
        "keys of callback tokens as id:secret; the first signs, all verify", (), secret=True
    )
    callback_hosts: tuple[str, ...] = _setting("hosts that commands may name in callback_urls", ())

    egress_allow: tuple[str, ...] = _setting("networks (CIDR) beside the public ones that handlers may call", ())
    smtp_url: str = _setting("the mail server: smtp://user:password@host:587 or smtps://…", "", secret=True)
    mail_from: str = _setting("who mail is from, unless a step says so", "")
    open_limits: tuple[str, ...] = _setting("limits that documents of tenants may name: ses:acme, or ses:* for all", ())

    sources: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    def told(self) -> Iterator["Told"]:
        """Yields every effective setting with its source. Secrets are masked."""
        for each in _known():
            value = getattr(self, each.name)
            variable = variable_of(each.name)
            text = _shown(each, value)
            yield Told(each.name, variable, text, self.sources.get(each.name, "default"), each.metadata["doc"])


class Told(NamedTuple):
    name: str
    variable: str
    value: str
    source: str
    doc: str


def load(environ: Mapping[str, str] | None = None, file: Path | None = None, **given: object) -> Settings:
    """Reads the environment, then the file (`tenuto.toml`, or `TENUTO_CONFIG`). `given` takes precedence.

    Raises `SettingsError` with all problems at once.
    """
    environ = os.environ if environ is None else environ
    path = file or Path(environ.get(f"{PREFIX}CONFIG", FILE))
    problems: list[Problem] = []
    values: dict[str, object] = {}
    sources: dict[str, str] = {}
    in_file = _read_file(path, must_exist=file is not None or f"{PREFIX}CONFIG" in environ, problems=problems)
    for each in _known():
        variable = variable_of(each.name)
        if given.get(each.name) is not None:
            found, source = given[each.name], GIVEN
        elif variable in environ:
            found, source = environ[variable], variable
        elif each.name in in_file:
            found, source = in_file[each.name], str(path)
        else:
            continue
        parse = _from_text if source == variable else _from_toml
        try:
            values[each.name] = parse(each.default, found, each.name)
            sources[each.name] = source
        except (ValueError, TypeError) as error:
            where = variable if source == variable else f"{source}: {each.name}"
            problems.append(Problem(where, "bad_value", str(error)))
    problems.extend(_misspelt(environ))
    if problems:
        raise SettingsError(problems=problems, hint=MEND)
    return Settings(**values, sources=sources)  # type: ignore[arg-type]  # parsed to the type of each field


def variable_of(name: str) -> str:
    return PREFIX + name.upper()


def _known() -> list[Field[Any]]:
    return [each for each in fields(Settings) if "doc" in each.metadata]


def _read_file(path: Path, *, must_exist: bool, problems: list[Problem]) -> dict[str, object]:
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if must_exist:
            problems.append(Problem(str(path), "no_file", "there is no such file"))
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        problems.append(Problem(str(path), "unreadable", f"it cannot be read: {error}"))
        return {}
    names = {each.name for each in _known()}
    unknown = sorted(set(found) - names)
    problems.extend(Problem(f"{path}: {name}", *_why_unknown(name, names)) for name in unknown)
    return found


def _misspelt(environ: Mapping[str, str]) -> Iterator[Problem]:
    """Yields variables that are similar to a setting.

    Others are ignored, because platforms set variables that are named after a service, such as `TENUTO_SERVICE_HOST`.
    """
    names = {each.name for each in _known()}
    others = {name.removeprefix(PREFIX).lower() for name in environ if name.startswith(PREFIX)} - names - {"config"}
    for name in sorted(others):
        if name in LATER or (not name.startswith("secret_") and _nearest(name, names)):
            yield Problem(variable_of(name), *_why_unknown(name, names, variable_of))


def _why_unknown(name: str, names: Iterable[str], shown: Callable[[str], str] = str) -> tuple[str, str]:
    """Returns a code and a message."""
    if name in LATER:
        return "not_built", "this version does not support it yet: unset it"
    nearest = _nearest(name, names)
    return "unknown_setting", f"there is no such setting{f'; did you mean {shown(nearest)}?' if nearest else ''}"


def _nearest(name: str, names: Iterable[str]) -> str | None:
    """Returns a setting with the same letters in another order, or with a similar name."""
    turned = [known for known in names if sorted(known) == sorted(name)]
    return next(iter([*turned, *get_close_matches(name, names, n=1, cutoff=0.8)]), None)


# -- Values ------------------------------------------------------------------------------------------------------------


def _from_text(default: object, text: object, name: str) -> object:
    """Parses text from the environment: lists are separated by commas, tables are JSON."""
    assert isinstance(text, str)
    match default:
        case bool():
            return _boolean(text)
        case int() | float():
            return _within(name, _number(text, type(default)))
        case tuple() if name == "jwt_issuers":
            return _issuers_from_json(text)
        case tuple() if name == "step_overrides":
            return _overrides_from_json(text)
        case tuple():
            return _words(name, [part.strip() for part in text.split(",") if part.strip()])
    return _word(name, text)


def _from_toml(default: object, value: object, name: str) -> object:
    if name == "step_overrides":
        return _overrides(value)
    if isinstance(default, tuple):
        if not isinstance(value, list | tuple):
            raise ValueError("must be a list")
        return _issuers(value) if name == "jwt_issuers" else _words(name, value)
    if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
        return _within(name, float(value))
    if type(value) is not type(default):
        raise ValueError(f"must be {_KINDS[type(default)]}")
    return _within(name, value) if isinstance(value, int | float) and type(value) is not bool else _word(name, value)


_BOOLEANS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def _boolean(text: str) -> bool:
    if text.lower() not in _BOOLEANS:
        raise ValueError("must be true or false")
    return _BOOLEANS[text.lower()]


_KINDS: dict[type, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}


def _number(text: str, kind: type) -> float:
    try:
        return int(text) if kind is int else float(text)
    except ValueError:
        raise ValueError(f"must be {_KINDS[kind]}") from None


def _within(name: str, value: float) -> float:
    least, most = BOUNDS.get(name, (value, value))
    if not least <= value <= most:
        raise ValueError(f"it must be from {least:g} to {most:g}")
    return value


def _word(name: str, value: object) -> object:
    if name in TIMES and (value or name != "retention"):  # no retention keeps everything
        least = TIMES[name]
        if str(value).strip().replace(".", "", 1).isdecimal():
            raise ValueError(f"must be a duration with a unit, such as {value}s, {value}m or {value}h")
        if milliseconds(str(value)) < least:
            raise ValueError(f"must be at least {least / 1_000:g}s")
    if name == "smtp_url" and value:
        _check_mail_server(str(value))
    if name in ("server", "public_url") and value and not str(value).startswith(("http://", "https://")):
        raise ValueError("must begin with https:// or http://")
    known = WORDS.get(name)
    if known is not None and value not in known:
        raise ValueError(f"it must be one of {', '.join(known)}")
    return value


def _words(name: str, given: Any) -> tuple[str, ...]:
    if not all(isinstance(word, str) for word in given):
        raise ValueError("must be a list of strings")
    if name == "queues" and not (given and all(word.strip() for word in given)):
        raise ValueError("name at least one: a worker without a queue runs nothing; the usual one is `default`")
    if name in ("egress_allow", "trusted_proxies"):
        _check_ranges(given)
    known = get_args(FourEyes)
    if name == "four_eyes" and (unknown := [word for word in given if word not in known]):
        raise ValueError(f"{', '.join(unknown)}: it must be one of {', '.join(known)}")
    return tuple(given)


def _overrides_from_json(text: str) -> tuple[tuple[str, Mapping[str, object]], ...]:
    try:
        return _overrides(json.loads(text or "{}"))
    except json.JSONDecodeError as error:
        raise ValueError(f'must be JSON such as {{"saga.step": {{"timeout": "60s"}}}}: {error}') from None


def _overrides(given: object) -> tuple[tuple[str, Mapping[str, object]], ...]:
    """Checks the shape. `Engine` checks what the tables contain, because it knows the options of steps."""
    if not isinstance(given, Mapping) or not all(isinstance(options, Mapping) for options in given.values()):
        raise ValueError('must be tables with "saga.step" as name: [step_overrides."saga.step"]')
    return tuple(given.items())


def _check_ranges(given: Iterable[str]) -> None:
    for text in given:
        try:
            ip_network(text)
        except ValueError as error:
            raise ValueError(f"{text!r} is not an address range such as 10.1.0.0/16: {error}") from None


def _check_mail_server(url: str) -> None:
    """Checks the SMTP URL. The error does not contain it, because it includes a password."""
    try:
        parts = urlsplit(url)
        fits = parts.scheme in ("smtp", "smtps") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fits = False
    if not fits:
        raise ValueError("it must be smtp://user:password@host:587 or smtps://…")


def _issuers(given: Any) -> tuple[Issuer, ...]:
    if not isinstance(given, list | tuple):
        raise ValueError("must be a list of issuers, even for one issuer")
    made = tuple(
        entry if isinstance(entry, Issuer) else _issuer(entry, number) for number, entry in enumerate(given, start=1)
    )
    if len({issuer.issuer for issuer in made}) < len(made):
        raise ValueError("duplicate issuer: give each issuer once")
    if wrong := list(_wrong_together(made)):
        raise ValueError("; ".join(wrong))
    return made


def check_issuers(issuers: Sequence[Issuer]) -> None:
    """Raises `SettingsError` if the tenants or roles of an issuer are not specified."""
    wrong = [f"{issuer.issuer}: {text}" for issuer in issuers for text in _wrong_grants(asdict(issuer))]
    problems = [Problem("jwt_issuers", "bad_value", text) for text in [*wrong, *_wrong_together(issuers)]]
    if problems:
        raise SettingsError(problems=problems, hint=MEND)


def _wrong_together(issuers: Sequence[Issuer]) -> Iterator[str]:
    """Rejects `*` beside other issuers, because that issuer could name their tenants."""
    for issuer in issuers:
        if len(issuers) > 1 and ANY_TENANT in issuer.tenants:
            yield f'{issuer.issuer}: tenants has "*", and there are several issuers: name the tenants of each'


def _issuers_from_json(text: str) -> tuple[Issuer, ...]:
    try:
        given = json.loads(text or "[]")
    except ValueError as error:
        wanted = 'must be a JSON list of issuers, such as [{"issuer": "https://…", "audience": "…", "jwks_url": "…"}]'
        raise ValueError(f"{wanted}; this is not valid JSON ({error})") from None
    return _issuers(given)


def _issuer(entry: Any, number: int) -> Issuer:
    """Parses an issuer. The error names the issuer and all of its problems."""
    which = f"issuer {number}"
    if not isinstance(entry, dict):
        raise ValueError(f"{which}: it has fields: {', '.join(_ISSUER_FIELDS)}")
    if entry.get("issuer"):
        which = f"{which} ({entry['issuer']})"
    if wrong := list(_wrong_in(entry)):
        raise ValueError(f"{which}: {'; '.join(wrong)}")
    lists = {name: tuple(entry[name]) for name in _LIST_FIELDS if name in entry}
    return Issuer(**{**entry, **lists})


_ISSUER_FIELDS = tuple(each.name for each in fields(Issuer))


def _wrong_in(entry: Mapping[str, object]) -> Iterator[str]:
    for name in entry:
        if name not in _ISSUER_FIELDS:
            nearest = _nearest(name, _ISSUER_FIELDS)
            meant = f"did you mean {nearest}?" if nearest else f"fields are {', '.join(_ISSUER_FIELDS)}"
            yield f"there is no field {name}: {meant}"
        elif name in _LIST_FIELDS:
            if not _is_list_of_texts(entry[name]):
                yield f"{name} must be a list of strings"
        elif not isinstance(entry[name], str):
            yield f"{name} must be a string"
    if not entry.get("issuer"):
        yield "issuer is missing: give what its tokens have as iss"
    if not entry.get("audience"):
        yield "audience is missing: give what its tokens have as aud"
    yield from (f"{name} is empty: leave it out, or name a claim" for name in _CLAIM_FIELDS if entry.get(name) == "")
    url, file = entry.get("jwks_url"), entry.get("jwks_file")
    if not url and not file:
        yield "its keys are missing: give jwks_url or jwks_file"
    elif url and file:
        yield "jwks_url and jwks_file are both there: give one of them"
    elif isinstance(url, str) and url and not url.startswith("https://"):
        yield "jwks_url must begin with https://"
    yield from _wrong_grants(entry)


def _wrong_grants(entry: Mapping[str, Any]) -> Iterator[str]:
    tenant, tenants, roles = entry.get("tenant"), entry.get("tenants"), entry.get("roles")
    if not tenant and not tenants:
        yield "its tenants are missing: give tenants, a list of those that its tokens may name, or tenant, a fixed one"
    elif tenant and tenants:
        yield "tenant and tenants are both there: give one of them"
    for name in [tenant or ANY_TENANT, *(tenants or ())]:
        if isinstance(name, str) and name != ANY_TENANT and TENANT.fullmatch(name) is None:
            yield f"{name!r} is no tenant: letters, digits, `_`, `-` and `.`, at most 128"
    if tenant == ANY_TENANT:
        yield 'tenant is a fixed one: give tenants = ["*"] for all but `default`'
    if not roles:
        yield "roles is missing: give a list of those that its tokens may have at most"
    for role in roles or ():
        if isinstance(role, str) and not is_role(role):
            known = ", ".join(get_args(Role))
            yield f"{role!r} is not a role. Roles are {known}; own permissions have a colon: `invoices:approve`"


def _is_list_of_texts(value: object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)


_CLAIM_FIELDS = ("tenant_claim", "roles_claim")
_LIST_FIELDS = ("tenants", "roles")


def _shown(setting: Field[Any], value: object) -> str:
    if setting.metadata["secret"]:
        return "[secret]" if value else ""
    return redact_url(str(value)) if setting.name == "url" else redact(_text(value))


def _text(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case tuple():
            return ", ".join(_item(each) for each in value)
    return str(value)


def _item(value: object) -> str:
    match value:
        case Issuer():
            return value.issuer
        case (str() as key, Mapping()):
            return key
    return str(value)
