"""Masks secrets in stored and displayed text, because errors of third-party libraries quote their arguments.

Masked are named credentials (`password=…`, `Authorization: …`, `user:secret@host`, `?sig=…`, `--token …`,
`<password>…`; also in JSON, in JSON inside strings and in Python's representation of headers), tokens with a
recognisable form (JWTs, API keys with known prefixes), private keys, long hexadecimal or base64 strings, e-mail
addresses and card numbers. Text that is useful for searching stays: names of constraints and classes, paths, trace ids,
times. Each mask names the kind of text that it replaces. Redaction is a safety measure, not a guarantee: never put a
secret into an exception.
"""

import logging
import re
import string
from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import islice
from typing import Final

MAX_BYTES: Final = 2048
MAX_DEPTH: Final = 32  # of nested values
MAX_VALUES: Final = 10_000
_CUT: Final = " […]"

# Each pattern is bounded or starts at the beginning of a run of its characters, so that matching takes linear time.
_NAMES = (
    r"pass(?:code|\b)|pwd|secret(?!ar)|token(?!i[sz])"
    r"|(?:api|access|account|encryption|master|private|signing|ssh)[ _-]?key"
    r"|session|(?<=[_-])signature|credentials?(?=['\"]?=)|(?:cvc|cvv|otp)\b"
)
_ANYWHERE = r"pass(?:word|wd|phrase)"  # matched inside longer words, such as PGPASSWORD or sslpassword
_AUTHORIZATION = re.compile(
    r"(?i)\b((?:proxy-)?authorization['\"]?\s*[:=]\s*['\"]?)[^\r\n'\",;]+"
    r"(?:\"[^\"\r\n]*\")?(?:\s*[,;]\s*[\w-]+=(?:\"[^\"\r\n]*\"|[^\s'\",]*))*"  # `Digest username="…", response="…"`
)
_SCHEME = re.compile(r"(?i)\b(bearer|basic|digest|token)(\s+)(?=[^\s'\",;]*[\d=+/_.-])[^\s'\",;]{6,}")
_VALUE = (
    r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|\[[^\[\]\r\n]*\]|\{[^{}\r\n]*\}"
    r"|\\{1,8}\"[^\"\r\n]*|[\"'][^\r\n]*"  # JSON inside a string; a truncated string
    r"|[^\s&'\",;)\]}]+(?:'[^'\r\n]*'|\"[^\"\r\n]*\")?"  # also b'…'
)
_NAMED = re.compile(
    rf"(?is)((?:(?:\b|_|(?-i:(?<=[a-z])(?=[A-Z])))(?:{_NAMES})|{_ANYWHERE})"
    rf"[\w-]{{0,64}}(?:\[\w{{0,32}}\]|\])?(?:\\{{0,8}}['\"])?\s*[:=]\s*)({_VALUE})"
)
# Words that follow the name of a credential in a message: `invalid token: expected ','`, `password: too short`.
_PROSE = frozenset({
    "cannot", "closed", "empty", "expected", "expired", "false", "invalid", "is", "missing", "must", "no", "none",
    "not", "null", "required", "too", "true", "undefined", "unexpected", "unknown", "was", "wrong",
})  # fmt: skip
_QUOTED = re.compile(rf"(?i)({_ANYWHERE}\s+(?:is\s+|was\s+)?)(?:'[^'\r\n]+'|\"[^\"\r\n]+\")")
_OPTION = re.compile(
    rf"(?i)((?<![\w-])--[\w-]{{0,32}}(?:{_ANYWHERE}|secret|token|api-?key)[\w-]{{0,32}}(?:['\"],\s*['\"]|\s+['\"]?))"
    r"(?![-\s])[^\s'\"]+"
)
_ELEMENT = re.compile(rf"(?i)(<[\w:-]{{0,32}}(?:{_ANYWHERE}|secret|token|api-?key)[\w-]{{0,32}}>)[^<]+(?=</)")
# Python's representation of headers
_PAIR = re.compile(r"(\(b?['\"]([\w-]{1,64})['\"],\s*)b?(?:'[^'\r\n]*'|\"[^\"\r\n]*\")(?=\))")
_IN_QUERY = re.compile(
    r"(?i)([?&;](?:[\w-]{1,32}[_-])?(?:auth|sig|signature|credential|code(?==[^&\s]{16}))=)"
    r"(?:\[secret\]|[^\s&'\",;)\]}]+)"
)
_PEM = re.compile(r"(?s)-----BEGIN [A-Z ]{0,40}PRIVATE KEY[A-Z ]{0,20}-----.*?(?:-----END [A-Z ]{0,60}-----|\Z)")
_IN_NAMES = f"{string.ascii_letters}{string.digits}_-"
_MOST_BEFORE = 64
_COOKIE = re.compile(r"(?i)\b((?:set-)?cookie['\"]?\s*[:=]\s*)[^\r\n]+")
_IN_URL = re.compile(r"(?i)((?<![a-z0-9+.-])[a-z][a-z0-9+.-]*://)[^\s/@:]*:[^\s/]*@")
_PASSWORD_IN_URL = re.compile(r"(?i)((?<![a-z0-9+.-])[a-z][a-z0-9+.-]*://[^\s/@:]*:)[^\s/]*@")
# with its host it would look like an e-mail address
_USER_IN_URL = re.compile(r"(?i)((?<![a-z0-9+.-])[a-z][a-z0-9+.-]*://)[^\s/@:?#]+@")
_CREDENTIAL = re.compile(  # names of headers and fields
    r"(?i)auth(?!or(?!i[sz]))|cookie|pass(?:word|wd|phrase|code)|pwd|secret|token|session|credential|signature"
    r"|(?:api|access|private)[_-]?key|[_-]key$|(?:^|[_-])(?:cvc|cvv|otp|sig)(?:$|[_-])"
)
# Names that match above but are not credentials, such as counts. All of their words must be known: with an unknown
# word, the name may be a credential.
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_SEVERAL = frozenset({"tokens", "sessions"})
_COUNTED = _SEVERAL | {"token", "session"}
_COUNTS = frozenset({
    "budget", "cost", "count", "length", "limit", "max", "maximum", "min", "minimum", "num", "number", "timeout", "ttl",
    "usage",
})  # fmt: skip
_COUNTS_OF_SEVERAL = frozenset({
    "average", "avg", "cached", "completion", "estimated", "input", "left", "output", "per", "prompt", "reasoning",
    "remaining", "spent", "total", "used",
})  # fmt: skip
_BESIDE_COUNTS = frozenset({
    "details", "hour", "minute", "ms", "n", "of", "rate", "ratelimit", "second", "seconds", "x",
})  # fmt: skip
_KEYS = frozenset({  # lookup keys
    "cache", "concurrency", "foreign", "idempotency", "key", "partition", "primary", "public", "routing", "sort", "x",
})  # fmt: skip
# Words and small numbers, which most log fields consist of. No rule below matches them, so they are returned early.
_PLAIN = re.compile(r"(?:[A-Za-z]{1,15}(?: |$))*|[A-Za-z_]{1,15}|\d{1,12}")
_JWT = re.compile(r"\beyJ[\w-]+\.[\w-]+\.[\w-]*")
_PREFIXED = re.compile(
    r"\b(?:[spr]k_(?:live|test)_|sk-(?=[\w-]{0,64}\d)|tnt_|gh[oprsu]_|github_pat_|glpat-|xox[abeoprs]-|xapp-|npm_|pypi-"
    r"|whsec_|hf_|shp(?:at|ca|pa|ss)_|sq0[a-z]{3}-|AIza)[\w-]{12,}"
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{12,}|\b(?:ya29|SG)\.[\w.-]{16,}"
)
_EMAIL = re.compile(r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
_HEXADECIMAL = re.compile(r"\b(?:0x)?[0-9a-fA-F]{32,}\b")
_BASE64 = re.compile(
    r"(?<![\w+/=-])(?=[\w+/-]*\d)(?=[\w+/-]*[a-z])(?=[\w+/-]*[A-Z])[A-Za-z0-9+/_-]{32,}={0,2}(?![\w+/-])"
)
_PIECE = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|\d+")
_READABLE = 3.3  # average letters per piece: names and paths have more, random text has about two
_IDENTITY = re.compile(r"(?i)(?:(?:trace|span|request|correlation)[_-]?id['\"]?\s*[:=]\s*['\"]?|\bcommit |\bsha256:)$")
_CARD = re.compile(r"(?<![\w.-])(?:\d[ -]?){12,18}\d(?![\w-])")


def summary(text: str) -> str:
    """Redacts a text and limits its length. Only the beginning of a very long text is read."""
    return bounded(redact(bounded(text, 4 * MAX_BYTES)))


def redact(text: str) -> str:
    """Masks secrets in a text."""
    if _PLAIN.fullmatch(text):
        return text
    if "-----BEGIN" in text:
        text = _PEM.sub("[private key]", text)
    if "(" in text:
        text = _PAIR.sub(lambda pair: f"{pair[1]}[secret]" if is_secret(pair[2]) else pair[0], text)
    text = _AUTHORIZATION.sub(r"\1[secret]", text)
    text = _COOKIE.sub(r"\1[secret]", text)
    text = _USER_IN_URL.sub(r"\1[secret]@", _IN_URL.sub(r"\1[secret]@", text))
    text = _NAMED.sub(_mask_named, text)
    text = _IN_QUERY.sub(r"\1[secret]", text)
    text = _QUOTED.sub(r"\1[secret]", text)
    if "--" in text:
        text = _OPTION.sub(r"\1[secret]", text)
    if "</" in text:
        text = _ELEMENT.sub(r"\1[secret]", text)
    text = _SCHEME.sub(r"\1\2[secret]", text)
    text = _JWT.sub("[token]", text)
    text = _PREFIXED.sub("[token]", text)
    text = _EMAIL.sub("[email]", text)
    text = _HEXADECIMAL.sub(_mask_hexadecimal, text)
    text = _BASE64.sub(_mask_base64, text)
    return _CARD.sub(_mask_card, text)


def redact_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Masks the values of headers whose names indicate credentials."""
    return {name: "[secret]" if is_secret(name) else value for name, value in headers.items()}


@lru_cache(maxsize=1_024)
def is_secret(name: str) -> bool:
    """Returns whether a name indicates a credential. Session ids count, because some of them grant access."""
    if _CREDENTIAL.search(name) is None and _NAMED.search(f"{name}=…") is None:
        return False
    words = _words(name)
    return not (_is_count(words) or (len({*words} - {"key", "x"}) == 1 and _KEYS.issuperset(words)))


def _words(name: str) -> tuple[str, ...]:
    return tuple(word.lower() for word in _WORD.findall(name))


def _is_count(words: tuple[str, ...]) -> bool:
    """Returns whether words name a count: `max_tokens` and `tokensUsed`, but not `access_tokens` or `reset_token`."""
    rest = {word for word in words if word not in _COUNTED}
    counts = _COUNTS | _COUNTS_OF_SEVERAL if _SEVERAL.intersection(words) else _COUNTS
    return len(rest) < len(words) and bool(rest & counts) and rest <= counts | _BESIDE_COUNTS


def redact_value(value: object, name: str = "", masked: Callable[[object], object] | None = None) -> object:
    """Masks secrets in a JSON-like value, by field name and by form. Numbers stay numbers.

    `masked` is applied to every scalar. Parts that are too deep or beyond the maximum number of values are left out, so
    that a huge or cyclic value cannot break a log line.
    """
    return _Values(masked or _masked).redacted(value, name, MAX_DEPTH)


class _Values:
    def __init__(self, masked: Callable[[object], object]) -> None:
        self._masked = masked
        self._left = MAX_VALUES

    def redacted(self, value: object, name: str, deeper: int) -> object:
        if is_secret(name):
            return "[secret]"
        self._left -= 1
        if not isinstance(value, dict | list | tuple):
            return self._masked(value)
        if deeper == 0 or self._left <= 0:
            return _CUT.strip()
        if isinstance(value, dict):
            parts = islice(value.items(), self._left)
            return {summary(text_of(key)): self.redacted(part, text_of(key), deeper - 1) for key, part in parts}
        return [self.redacted(part, "", deeper - 1) for part in islice(value, self._left)]


def _masked(value: object) -> object:
    text = text_of(value)
    kept = summary(text)
    return value if kept == text and isinstance(value, int | float | None) else kept


def text_of(value: object) -> str:
    """Returns `str(value)`, or the name of its type if that raises."""
    try:
        return f"{value}"
    except Exception:  # redaction must not raise, whatever the object does
        return f"[{type(value).__name__}]"


def redact_url(url: str) -> str:
    """Masks the password in the URL of a database or server."""
    return _NAMED.sub(_mask_named, _IN_URL.sub(r"\1[secret]@", url))


def _mask_named(match: re.Match[str]) -> str:
    """Masks the value of a match. The name may start before the match, which begins at one word of it."""
    before = match.string[max(0, match.start() - _MOST_BEFORE) : match.start()]
    name = before[len(before.rstrip(_IN_NAMES)) :] + match[1].rstrip(" \t\r\n:='\"")
    is_not_secret = match[2].lower() in _PROSE or _is_count(_words(name))
    return match[0] if is_not_secret else f"{match[1]}[secret]"


def _mask_hexadecimal(match: re.Match[str]) -> str:
    before = match.string[max(0, match.start() - 32) : match.start()]
    return "[token]" if _IDENTITY.search(before) is None else match[0]


def _mask_base64(match: re.Match[str]) -> str:
    pieces = _PIECE.findall(match[0])
    is_name = not {*match[0]} & {*"+="} and sum(map(len, pieces)) >= _READABLE * len(pieces)
    return match[0] if is_name else "[token]"


def without_password(url: str) -> str:
    """Replaces the password in a URL by a placeholder, for commands that Tenuto suggests."""
    return _NAMED.sub(r"\1PASSWORD", _PASSWORD_IN_URL.sub(r"\1PASSWORD@", url))


def _mask_card(match: re.Match[str]) -> str:
    digits = [int(char) for char in match[0] if char.isdigit()]
    if not (3 <= digits[0] <= 6 or (len(digits) == 16 and 22 <= 10 * digits[0] + digits[1] <= 27)):
        return match[0]  # not a card prefix; milliseconds since 1970 match here
    doubled = [sum(divmod(2 * digit, 10)) for digit in digits[-2::-2]]
    luhn = sum(digits[::-2]) + sum(doubled)
    return "[card]" if luhn % 10 == 0 else match[0]


def bounded(text: str, limit: int = MAX_BYTES) -> str:
    """Returns at most `limit` bytes of UTF-8, without NUL characters and lone surrogates, which databases reject."""
    raw = text.replace("\0", "").encode("utf-8", "replace")
    if len(raw) <= limit:
        return raw.decode()
    return raw[: limit - len(_CUT.encode())].decode("utf-8", "ignore") + _CUT


def quiet_http_loggers() -> None:
    """Sets the loggers of the HTTP client to WARNING, unless their levels are set.

    These libraries log whole URLs at INFO and headers at DEBUG, both of which may contain secrets.
    """
    for name in ("httpx2", "httpcore2"):
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.WARNING)
