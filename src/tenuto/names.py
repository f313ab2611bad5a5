"""Text that executions, people and messages are found by."""

from .errors import InvalidInput

MAX_NAME = 256  # characters


def check_name(given: str | None, field: str) -> None:
    """Text that something is found by. An index has no room for more, and databases take no other.

    Empty text is a variable that was not filled in. Taken for a name, it would make one of all that leave it so.
    """
    if given is None:
        return
    if not isinstance(given, str):
        raise InvalidInput.at(f"/{field}", "type", "it is text")
    if not given:
        raise InvalidInput.at(f"/{field}", "empty", "empty text names nothing: leave it out, or give it a value")
    if len(given) > MAX_NAME:
        raise InvalidInput.at(f"/{field}", "too_long", f"at most {MAX_NAME} characters: shorten it, or give a digest")
    if "\0" in given or not (given.isascii() or _is_unicode(given)):
        raise InvalidInput.at(f"/{field}", "text", "it holds what is no character: a NUL, or half of a surrogate pair")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
