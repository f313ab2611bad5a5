"""Converts Python values to canonical JSON and back to the annotated type.

Canonical JSON has one text per value: compact, with fields and keys in their own order, and the members of a set sorted
if the annotation says that it is a set. It contains nothing that a database, another language or a later release could
read differently: no NaN or Infinity, no lone surrogates, no NUL characters, no duplicate keys, at most `MAX_DEPTH`
levels, and no more bytes than the limit. Errors give the place and the reason and never show the value, because
payloads must not reach logs.

msgspec does the work in C. Its two hooks handle the types that it does not support: pydantic models, subclasses of str,
int and float, and unions of several classes. Pydantic is recognised by its methods and never imported.
"""

from .hooks import MAX_DEPTH as MAX_DEPTH
from .promises import can_serialise as can_serialise
from .reading import Decode as Decode
from .reading import decoder as decoder
from .writing import DEFAULT_LIMIT as DEFAULT_LIMIT
from .writing import Encode as Encode
from .writing import encode as encode
from .writing import encoder as encoder
