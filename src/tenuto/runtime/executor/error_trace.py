"""Where a handler raised: the frames of an exception as text, without values of variables and without source lines.

Frames of the handler's own code come first, the innermost one at the top; frames of libraries follow. Texts of
exceptions are redacted like error summaries. Names of files and functions are code, not data, and stay as they are.
"""

import os
import sysconfig
from collections.abc import Iterator
from traceback import walk_tb
from types import FrameType
from typing import Final

from tenuto.values.redaction import bounded, summary

MAX_TRACE: Final = 4096  # bytes
MOST_OWN: Final = 12  # frames
MOST_OF_LIBRARIES: Final = 8
MOST_CAUSES: Final = 4
MAX_TEXT: Final = 256  # of an exception: the whole of it is in the error summary

_PACKAGE: Final = __name__.partition(".")[0]
_PATHS: Final = sysconfig.get_paths()
_INSTALLED: Final = tuple(f"{_PATHS[name]}{os.sep}" for name in ("purelib", "platlib"))
_LIBRARIES: Final = (*_INSTALLED, f"{_PATHS['stdlib']}{os.sep}", f"{_PATHS['platstdlib']}{os.sep}", "<frozen ")


def error_trace(error: BaseException) -> str:
    """The trace of a handler's exception. Empty if no code of the handler was called, or the handler is built in."""
    try:
        return bounded("\n".join(_lines(error)), MAX_TRACE)
    except BaseException:  # an exception is an object of its own class, and reading it may raise anything
        return ""


def _lines(error: BaseException) -> Iterator[str]:
    frames = _frames(error)
    if not frames:
        return
    package = _package(frames[0][0])
    if package == _PACKAGE:
        return
    seen: set[int] = set()
    cause: BaseException | None = error
    heading = ""
    while cause is not None and id(cause) not in seen and len(seen) < MOST_CAUSES:
        seen.add(id(cause))
        yield f"{heading}{_text(cause)}"
        yield from _places(_frames(cause), package)
        for part in cause.exceptions[:MOST_CAUSES] if isinstance(cause, BaseExceptionGroup) else ():
            yield f"in this group: {_text(part)}"
            yield from _places(_frames(part), package)
        heading = "caused by: " if cause.__cause__ is not None else "while handling: "
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)


def _frames(error: BaseException) -> list[tuple[FrameType, int]]:
    """From the handler's own frame inwards: frames of the engine that called it are left out."""
    frames = list(walk_tb(error.__traceback__))
    while frames and _is_engine(frames[0][0]):
        del frames[0]
    return frames


_ENGINE: Final = tuple(f"{_PACKAGE}.{part}" for part in ("api", "authoring", "runtime", "telemetry", "testing"))


def _is_engine(frame: FrameType) -> bool:
    return _module(frame).startswith(_ENGINE)


def _places(frames: list[tuple[FrameType, int]], package: str) -> Iterator[str]:
    inwards = frames[::-1]
    own = [_place(*found) for found in inwards if _is_own(found[0], package)]
    others = [_place(*found) for found in inwards if not _is_own(found[0], package)]
    for heading, places, most in (("", own, MOST_OWN), ("  in libraries:", others, MOST_OF_LIBRARIES)):
        if places and heading:
            yield heading
        yield from places[:most]
        if len(places) > most:
            yield f"  and {len(places) - most} more"


def _is_own(frame: FrameType, package: str) -> bool:
    """Code of the handler's package is its user's, also where that is installed among the libraries."""
    found = _package(frame)
    return found != _PACKAGE and (found == package or not frame.f_code.co_filename.startswith(_LIBRARIES))


def _place(frame: FrameType, line: int) -> str:
    return f"  {_file(frame.f_code.co_filename)}:{line} in {frame.f_code.co_qualname}"


def _file(name: str) -> str:
    for folder in (*_INSTALLED, f"{os.getcwd()}{os.sep}"):
        if name.startswith(folder):
            return name.removeprefix(folder)
    return name


def _module(frame: FrameType) -> str:
    name = frame.f_globals.get("__name__")
    return name if isinstance(name, str) else ""


def _package(frame: FrameType) -> str:
    return _module(frame).partition(".")[0]


def _text(error: BaseException) -> str:
    try:
        text = str(error)
    except BaseException:  # the class is the handler's, and so is its `__str__`
        text = ""
    return bounded(summary(f"{type(error).__name__}: {text}".rstrip(": ")), MAX_TEXT)
