"""Text that something is found by, and text that is kept with it."""

import re
from typing import Any, Literal, get_args

from tenuto.errors import InvalidInput

DEFAULT_TENANT = "default"  # of whoever names none; its definitions are there for all
MAX_NAME = 256  # characters
MAX_ACTOR = 512  # a person's name, with the issuer's that vouches for it
TENANT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
Role = Literal["viewer", "operator", "approver", "author", "worker", "admin"]
OWN_PERMISSION = re.compile(r"[a-z][a-z0-9_.-]{0,63}:[a-z0-9_.:-]{1,64}")  # `invoices:approve`


def is_role(word: str) -> bool:
    """Whether it has the form of what a credential can have: a role, or a permission of the users' own."""
    return word in get_args(Role) or OWN_PERMISSION.fullmatch(word) is not None


def check_name(given: str | None, field: str, at_most: int = MAX_NAME) -> None:
    """Text that something is found by. An index has no room for more, and databases take no other.

    Empty text is a variable that was not filled in. Taken for a name, it would make one of all that leave it so.
    """
    if given is None:
        return
    if not isinstance(given, str):
        raise InvalidInput.at(f"/{field}", "type", "it is text")
    if not given:
        raise InvalidInput.at(f"/{field}", "empty", "empty text names nothing: leave it out, or give it a value")
    if len(given) > at_most:
        raise InvalidInput.at(f"/{field}", "too_long", f"at most {at_most} characters: shorten it, or give a digest")
    check_text(given, field)


def check_text(given: str, field: str) -> None:
    """Of any length. What no database takes is refused where it comes in: later, it would be in the way of the rest."""
    if "\0" in given or not (given.isascii() or _is_unicode(given)):
        raise InvalidInput.at(f"/{field}", "text", "it holds what is no character: a NUL, or half of a surrogate pair")


def check_one_of(word: str, words: Any, where: str) -> None:
    """Of a word of a `Literal`, which type checkers see to: whoever has it from elsewhere is told which there are."""
    known: tuple[str, ...] = words.__args__
    if word not in known:
        raise InvalidInput.at(where, "unknown_word", f"{word!r} is none of {', '.join(known)}")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
