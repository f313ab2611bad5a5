"""The tokens of an expression, and the strings that they spell."""

import re
from collections.abc import Iterator
from typing import NamedTuple


class Invalid(Exception):
    """Refused when compiled."""


class Token(NamedTuple):
    kind: str
    text: str
    start: int


_TOKEN = re.compile(
    r"""
      (?P<blank>  \s+ | //[^\n]* )
    | (?P<string> [bB]? [rR] (?: \"{3}.*?\"{3} | '{3}.*?'{3} | "[^"\r\n]*" | '[^'\r\n]*' )
                | [bB]? (?: \"{3}(?:\\.|[^\\])*?\"{3} | '{3}(?:\\.|[^\\])*?'{3}
                          | "(?:\\.|[^"\\\r\n])*" | '(?:\\.|[^'\\\r\n])*' ) )
    | (?P<double> \d*\.\d+ (?:[eE][+-]?\d+)? | \d+[eE][+-]?\d+ )
    | (?P<int>    (?: 0[xX][0-9a-fA-F]+ | \d+ ) [uU]? )
    | (?P<name>   [A-Za-z_]\w* )
    | (?P<sign>   && | \|\| | [=!<>]= | [-+*/%<>!?:.,()\[\]{}] )
    """,
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_ESCAPE = re.compile(r"\\(?:[xX]([\da-fA-F]{2})|u([\da-fA-F]{4})|U([\da-fA-F]{8})|([0-3][0-7]{2})|(.))", re.DOTALL)
_ESCAPED = dict(zip("abfnrtv\\'\"`?", "\a\b\f\n\r\t\v\\'\"`?", strict=True))
WORDS = {"true": True, "false": False, "null": None}


def tokens(source: str, at: int = 0) -> Iterator[Token]:
    while at < len(source):
        match = _TOKEN.match(source, at)
        if match is None:
            what = "a string that never ends" if source[at] in "\"'" else f"{source[at]!r}, which means nothing,"
            raise Invalid(f"there is {what} at character {at + 1}")
        if (kind := match.lastgroup or "") != "blank":
            yield Token(kind, match.group(), at)
        at = match.end()
    yield Token("end", "", at)


def unquoted(token: Token) -> str:
    if token.text[0] in "bB":
        raise Invalid(f"there are bytes at character {token.start + 1}, and JSON has none")
    body = token.text.lstrip("rR")
    width = 3 if len(body) >= 6 and body[:3] in ('"""', "'''") else 1
    inner = body[width:-width]
    return inner if token.text[0] in "rR" else _ESCAPE.sub(_unescaped, inner)


def _unescaped(match: re.Match[str]) -> str:
    *hexadecimal, octal, other = match.groups()
    if other in _ESCAPED:
        return _ESCAPED[other]
    point = -1 if other else int(octal, 8) if octal else int("".join(filter(None, hexadecimal)), 16)
    if not 0 <= point <= 0x10FFFF or 0xD800 <= point < 0xE000:
        raise Invalid(f"{match.group()} stands for no character")
    return chr(point)
