"""Checks the names and texts that users supply."""

import re
from typing import Any, Literal, get_args

from tenuto.errors import InvalidInput

DEFAULT_TENANT = "default"  # for requests without a tenant; its definitions are visible to all tenants
MAX_NAME = 256  # characters
MAX_ACTOR = 512  # a subject together with its issuer
TENANT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
Role = Literal["viewer", "operator", "approver", "author", "worker", "admin"]
OWN_PERMISSION = re.compile(r"[a-z][a-z0-9_.-]{0,63}:[a-z0-9_.:-]{1,64}")  # `invoices:approve`


def is_role(word: str) -> bool:
    """Returns whether a credential may hold the word: a built-in role, or a user-defined permission."""
    return word in get_args(Role) or OWN_PERMISSION.fullmatch(word) is not None


def check_name(given: str | None, field: str, at_most: int = MAX_NAME) -> None:
    """Checks a text that is used as a key: its length fits an index, and databases can store it.

    An empty name is usually an unset variable. If it were accepted, all callers with that mistake would share one name.
    """
    if given is None:
        return
    if not isinstance(given, str):
        raise InvalidInput.at(f"/{field}", "type", "must be text")
    if not given:
        raise InvalidInput.at(f"/{field}", "empty", "must not be empty: leave it out, or give it a value")
    if len(given) > at_most:
        raise InvalidInput.at(
            f"/{field}", "too_long", f"is longer than {at_most} characters: shorten it, or use a digest"
        )
    check_text(given, field)


def check_text(given: str, field: str) -> None:
    """Checks that databases can store a text of any length.

    Checking here keeps one bad text from failing a whole batch.
    """
    if "\0" in given or not (given.isascii() or _is_unicode(given)):
        raise InvalidInput.at(f"/{field}", "text", "must not contain a NUL character or a lone surrogate")


def check_one_of(word: str, words: Any, where: str) -> None:
    """Checks that a word belongs to a `Literal`, for callers without a type checker. The error lists the words."""
    known: tuple[str, ...] = words.__args__
    if word not in known:
        raise InvalidInput.at(where, "unknown_word", f"{word!r} is not one of {', '.join(known)}")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
