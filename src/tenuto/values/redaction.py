"""Keeps secrets out of what is stored and shown: error texts of other people's libraries quote what they were given.

What is masked: credentials after their names (`password=…`, `Authorization: …`, `user:secret@host`, `?sig=…`,
`--token …`, `<password>…`; in JSON, in JSON that is text itself, in what Python prints of headers), tokens that say
what they are (JWTs, API keys with known prefixes), private keys, long runs of hexadecimal or base64, e-mail addresses,
and card numbers. What people search by stays: names of constraints and classes, paths, ids of traces, times. A mask
says what stood there. It is a net, not a proof: what must never be stored must not be put into an exception.
"""

import logging
import re
import string
from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import islice
from typing import Final

MAX_BYTES: Final = 2048
MAX_DEPTH: Final = 32  # of values
MAX_VALUES: Final = 10_000
_CUT: Final = " […]"

# Each begins where a run of its characters does, or is bounded: so the time is in proportion to the text.
_NAMES = (
    r"pass(?:code|\b)|pwd|secret(?!ar)|token(?!i[sz])"
    r"|(?:api|access|account|encryption|master|private|signing|ssh)[ _-]?key"
    r"|session|(?<=[_-])signature|credentials?(?=['\"]?=)|(?:cvc|cvv|otp)\b"
)
_ANYWHERE = r"pass(?:word|wd|phrase)"  # in no other word: PGPASSWORD, sslpassword
_AUTHORIZATION = re.compile(
    r"(?i)\b((?:proxy-)?authorization['\"]?\s*[:=]\s*['\"]?)[^\r\n'\",;]+"
    r"(?:\"[^\"\r\n]*\")?(?:\s*[,;]\s*[\w-]+=(?:\"[^\"\r\n]*\"|[^\s'\",]*))*"  # `Digest username="…", response="…"`
)
_SCHEME = re.compile(r"(?i)\b(bearer|basic|digest|token)(\s+)(?=[^\s'\",;]*[\d=+/_.-])[^\s'\",;]{6,}")
_VALUE = (
    r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|\[[^\[\]\r\n]*\]|\{[^{}\r\n]*\}"
    r"|\\{1,8}\"[^\"\r\n]*|[\"'][^\r\n]*"  # JSON that is text itself; one that is cut off
    r"|[^\s&'\",;)\]}]+(?:'[^'\r\n]*'|\"[^\"\r\n]*\")?"  # b'…' too
)
_NAMED = re.compile(
    rf"(?is)((?:(?:\b|_|(?-i:(?<=[a-z])(?=[A-Z])))(?:{_NAMES})|{_ANYWHERE})"
    rf"[\w-]{{0,64}}(?:\[\w{{0,32}}\]|\])?(?:\\{{0,8}}['\"])?\s*[:=]\s*)({_VALUE})"
)
# What is said of a credential, in place of one: `invalid token: expected ','`, `password: too short`.
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
_PAIR = re.compile(r"(\(b?['\"]([\w-]{1,64})['\"],\s*)b?(?:'[^'\r\n]*'|\"[^\"\r\n]*\")(?=\))")  # as Python has headers
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
_USER_IN_URL = re.compile(r"(?i)((?<![a-z0-9+.-])[a-z][a-z0-9+.-]*://)[^\s/@:?#]+@")  # with its host, no e-mail address
_CREDENTIAL = re.compile(  # names of headers and fields
    r"(?i)auth(?!or(?!i[sz]))|cookie|pass(?:word|wd|phrase|code)|pwd|secret|token|session|credential|signature"
    r"|(?:api|access|private)[_-]?key|[_-]key$|(?:^|[_-])(?:cvc|cvv|otp|sig)(?:$|[_-])"
)
# What is none all the same, by its words. All of them must be known: a name with one more may be anything.
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
_KEYS = frozenset({  # to find something by
    "cache", "concurrency", "foreign", "idempotency", "key", "partition", "primary", "public", "routing", "sort", "x",
})  # fmt: skip
# Words and small numbers: most of what a log has in its fields. None of the rules below takes such a text for a secret.
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
_READABLE = 3.3  # letters in a piece: names and paths have more, what is random has about two
_IDENTITY = re.compile(r"(?i)(?:(?:trace|span|request|correlation)[_-]?id['\"]?\s*[:=]\s*['\"]?|\bcommit |\bsha256:)$")
_CARD = re.compile(r"(?<![\w.-])(?:\d[ -]?){12,18}\d(?![\w-])")


def summary(text: str) -> str:
    """What is kept of a foreign text: redacted, and bounded. Of a very long one only the beginning is looked at."""
    return bounded(redact(bounded(text, 4 * MAX_BYTES)))


def redact(text: str) -> str:
    """The text with what looks secret masked."""
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
    """Headers as people are shown them: the values of those that carry credentials by their name are masked."""
    return {name: "[secret]" if is_secret(name) else value for name, value in headers.items()}


@lru_cache(maxsize=1_024)
def is_secret(name: str) -> bool:
    """Whether what goes by this name is a credential, whatever it looks like: the id of a session, too, may open it."""
    if _CREDENTIAL.search(name) is None and _NAMED.search(f"{name}=…") is None:
        return False
    words = _words(name)
    return not (_is_count(words) or (len({*words} - {"key", "x"}) == 1 and _KEYS.issuperset(words)))


def _words(name: str) -> tuple[str, ...]:
    return tuple(word.lower() for word in _WORD.findall(name))


def _is_count(words: tuple[str, ...]) -> bool:
    """`max_tokens`, `tokensUsed`, but neither `access_tokens` nor `reset_token`."""
    rest = {word for word in words if word not in _COUNTED}
    counts = _COUNTS | _COUNTS_OF_SEVERAL if _SEVERAL.intersection(words) else _COUNTS
    return len(rest) < len(words) and bool(rest & counts) and rest <= counts | _BESIDE_COUNTS


def redact_value(value: object, name: str = "", masked: Callable[[object], object] | None = None) -> object:
    """A value as JSON has it, with what is secret by its name or by its looks masked. Numbers stay numbers.

    `masked` says what becomes of all that holds nothing else. Of a value that is very deep or very large the rest is
    left out, so that no value, not even one that holds itself, is too much for the line that tells it.
    """
    return _Values(masked or _masked).told(value, name, MAX_DEPTH)


class _Values:
    def __init__(self, masked: Callable[[object], object]) -> None:
        self._masked = masked
        self._left = MAX_VALUES

    def told(self, value: object, name: str, deeper: int) -> object:
        if is_secret(name):
            return "[secret]"
        self._left -= 1
        if not isinstance(value, dict | list | tuple):
            return self._masked(value)
        if deeper == 0 or self._left <= 0:
            return _CUT.strip()
        if isinstance(value, dict):
            parts = islice(value.items(), self._left)
            return {summary(text_of(key)): self.told(part, text_of(key), deeper - 1) for key, part in parts}
        return [self.told(part, "", deeper - 1) for part in islice(value, self._left)]


def _masked(value: object) -> object:
    text = text_of(value)
    kept = summary(text)
    return value if kept == text and isinstance(value, int | float | None) else kept


def text_of(value: object) -> str:
    """What somebody's object says of itself, if it can."""
    try:
        return f"{value}"
    except Exception:  # whatever it raises: telling of it must not be what fails
        return f"[{type(value).__name__}]"


def redact_url(url: str) -> str:
    """The address of a database or a server as people are told it: whole, but without passwords."""
    return _NAMED.sub(_mask_named, _IN_URL.sub(r"\1[secret]@", url))


def _mask_named(match: re.Match[str]) -> str:
    """The match begins at a word of the name: what stands before belongs to it, too."""
    before = match.string[max(0, match.start() - _MOST_BEFORE) : match.start()]
    name = before[len(before.rstrip(_IN_NAMES)) :] + match[1].rstrip(" \t\r\n:='\"")
    is_told = match[2].lower() in _PROSE or _is_count(_words(name))
    return match[0] if is_told else f"{match[1]}[secret]"


def _mask_hexadecimal(match: re.Match[str]) -> str:
    before = match.string[max(0, match.start() - 32) : match.start()]
    return "[token]" if _IDENTITY.search(before) is None else match[0]


def _mask_base64(match: re.Match[str]) -> str:
    pieces = _PIECE.findall(match[0])
    is_name = not {*match[0]} & {*"+="} and sum(map(len, pieces)) >= _READABLE * len(pieces)
    return match[0] if is_name else "[token]"


def without_password(url: str) -> str:
    """An address as it stands in a command that is offered: what has to be filled in is in capitals."""
    return _NAMED.sub(r"\1PASSWORD", _PASSWORD_IN_URL.sub(r"\1PASSWORD@", url))


def _mask_card(match: re.Match[str]) -> str:
    digits = [int(char) for char in match[0] if char.isdigit()]
    if not (3 <= digits[0] <= 6 or (len(digits) == 16 and 22 <= 10 * digits[0] + digits[1] <= 27)):
        return match[0]  # no card begins so; milliseconds since 1970 do
    doubled = [sum(divmod(2 * digit, 10)) for digit in digits[-2::-2]]
    luhn = sum(digits[::-2]) + sum(doubled)
    return "[card]" if luhn % 10 == 0 else match[0]


def bounded(text: str, limit: int = MAX_BYTES) -> str:
    """At most `limit` bytes of UTF-8, without NUL characters and lone surrogates, which no database takes."""
    raw = text.replace("\0", "").encode("utf-8", "replace")
    if len(raw) <= limit:
        return raw.decode()
    return raw[: limit - len(_CUT.encode())].decode("utf-8", "ignore") + _CUT


def hush() -> None:
    """HTTP clients log whole URLs at INFO and headers at DEBUG, which may be secret. Whoever wants to read them all the
    same sets the levels of these loggers himself."""
    for name in ("httpx2", "httpcore2"):
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.WARNING)
