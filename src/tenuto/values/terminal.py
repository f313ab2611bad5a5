"""Text from data, made safe to print: a terminal obeys control characters, whoever wrote them."""

import re

# C0, DEL and C1; the line separators; the marks, overrides and isolates that reorder what is read.
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_SHORT = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


def escape_controls(text: str) -> str:
    """Shows control characters as JSON escapes, on one line. JSON that holds some keeps its meaning."""
    return _CONTROLS.sub(_escape, text)


def escape_lines(text: str) -> str:
    """The same for a text of several lines, whose breaks stay."""
    return "\n".join(map(escape_controls, text.split("\n")))


def _escape(found: re.Match[str]) -> str:
    return _SHORT.get(found[0]) or f"\\u{ord(found[0]):04x}"
