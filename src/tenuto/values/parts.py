"""What types are made of, as msgspec sees them."""

from collections.abc import Iterator

import msgspec


def parts_of(info: msgspec.inspect.Type) -> Iterator[msgspec.inspect.Type]:
    """A type and all it is made of. Recursive types make a graph with cycles, so each is visited once."""
    queue: list[object] = [info]
    seen: set[int] = set()
    for part in queue:  # grows while it is walked
        if isinstance(part, tuple):
            queue.extend(part)
        elif isinstance(part, msgspec.inspect.Type | msgspec.inspect.Field) and id(part) not in seen:
            seen.add(id(part))
            queue.extend(getattr(part, name) for name in part.__struct_fields__)
            if isinstance(part, msgspec.inspect.Type):
                yield part
