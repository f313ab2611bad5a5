"""Escapes control characters in data before it is printed, because a terminal interprets them."""

import re

# C0, DEL and C1; line separators; the marks, overrides and isolates that change the reading direction.
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_SHORT = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


def escape_controls(text: str) -> str:
    """Replaces control characters by JSON escapes, so that the result is one line. JSON keeps its meaning."""
    return _CONTROLS.sub(_escape, text)


def escape_lines(text: str) -> str:
    """Escapes control characters and keeps line breaks."""
    return "\n".join(map(escape_controls, text.split("\n")))


def _escape(found: re.Match[str]) -> str:
    return _SHORT.get(found[0]) or f"\\u{ord(found[0]):04x}"
