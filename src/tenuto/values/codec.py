"""Values that cross the durable boundary: from Python to canonical JSON, and back to the annotated type.

Canonical means: one text for one value (compact, fields and keys in the order they have, the members of a set sorted
where an annotation tells that it is one), and nothing in it that a database, another language or a later release could
read differently: no NaN or Infinity, no lone surrogates, no NUL characters, no key twice in one object, no more than
`MAX_DEPTH` levels, and no more bytes than the limit. Errors say where in a value something is wrong and why, and never
show the value: payloads hold what logs must not.

msgspec does the work in C. What it does not know (pydantic models, subclasses of str, int and float, unions of several
classes) comes through its two hooks; pydantic is recognised by its methods and never imported.
"""

from .hooks import MAX_DEPTH as MAX_DEPTH
from .promises import can_serialise as can_serialise
from .reading import Decode as Decode
from .reading import decoder as decoder
from .writing import DEFAULT_LIMIT as DEFAULT_LIMIT
from .writing import Encode as Encode
from .writing import encode as encode
from .writing import encoder as encoder
