"""Walks the parts of a type, as msgspec describes them."""

from collections.abc import Iterator

import msgspec


def parts_of(info: msgspec.inspect.Type) -> Iterator[msgspec.inspect.Type]:
    """Yields a type and all its parts. Recursive types form cycles, so each part is visited once."""
    queue: list[object] = [info]
    seen: set[int] = set()
    for part in queue:  # `queue` grows during the loop
        if isinstance(part, tuple):
            queue.extend(part)
        elif isinstance(part, msgspec.inspect.Type | msgspec.inspect.Field) and id(part) not in seen:
            seen.add(id(part))
            queue.extend(getattr(part, name) for name in part.__struct_fields__)
            if isinstance(part, msgspec.inspect.Type):
                yield part
