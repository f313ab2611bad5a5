"""What a regular expression costs, read off its text.

Patterns are matched in time proportionate to the text, but not at the same rate: each use compiles the pattern again,
and an automaton that is too large to be kept is simulated. Both depend on how many sets of characters a pattern has
when its counted repetitions are written out.
"""

import re
from typing import NamedTuple, TypeAlias

_ATOM = re.compile(
    r"(?P<wide>\\[wW]|\\[pP](?:\{[^}]*\}|.)|\[(?:\\[^wWpP]|[^\]\\])*\\[wWpP](?:\\.|[^\]\\])*\])"
    r"|(?P<digits>\\[dDsS]|\[(?:\\[^dDsS]|[^\]\\])*\\[dDsS](?:\\.|[^\]\\])*\])"
    r"|(?P<open>\.|\[\^\]?(?:\\.|[^\]\\])*\])|(?P<set>\[\]?(?:\\.|[^\]\\])*\])"
    r"|(?P<count>\{[0-9]+(?:,[0-9]*)?\})|(?P<loop>[*+])|(?P<begin>\()|(?P<end>\))|(?P<maybe>\?)|(?P<other>\\.|[^\\])",
    re.DOTALL,
)
_MOST_SETS = 12  # an automaton of so many sets in a row is still kept
_MOST = 100_000_000

# Of what a pattern is made: whether it is a set of letters of all scripts, whether it is a set, and the units of work
# that it takes to compile.
_PARTS = {"wide": (1, 1, 3_000), "digits": (0, 1, 250), "open": (0, 1, 80), "set": (0, 1, 12), "other": (0, 0, 8)}
_WIDE = _PARTS["wide"][2]
_FEW, _MANY = 10, 14_000  # if there are more than a few sets of letters, each takes longer
_NOTHING = (0, 0, 0)

_Sum: TypeAlias = tuple[int, int, int]


class Pattern(NamedTuple):
    compiling: int  # units of work
    is_ambiguous: bool  # a match may begin anywhere, with many sets of characters to follow


def pattern_of(text: str) -> Pattern:
    groups = [_NOTHING]
    last = _NOTHING
    repeats = not text.startswith("^") or "|" in text
    for found in _ATOM.finditer(text):
        match found.lastgroup:
            case "count":
                low, comma, high = found.group()[1:-1].partition(",")
                times = int((high or low)[:7])
                repeats = repeats or (bool(comma) and not high)
                groups[-1] = _sum(groups[-1], last, max(times - 1, 0))
                last = _sum(_NOTHING, last, max(times, 1))
            case "loop":
                repeats = True
            case "begin":
                groups.append(_NOTHING)
            case "end" if len(groups) > 1:
                last = groups.pop()
                groups[-1] = _sum(groups[-1], last, 1)
            case str(kind) if kind in _PARTS:
                last = _PARTS[kind]
                groups[-1] = _sum(groups[-1], last, 1)
            case _:
                pass
    wide, sets, work = groups[0]
    return Pattern(work + (wide * (_MANY - _WIDE) if wide > _FEW else 0), repeats and sets > _MOST_SETS)


def _sum(one: _Sum, other: _Sum, times: int) -> _Sum:
    return (
        min(one[0] + other[0] * times, _MOST),
        min(one[1] + other[1] * times, _MOST),
        min(one[2] + other[2] * times, _MOST),
    )
