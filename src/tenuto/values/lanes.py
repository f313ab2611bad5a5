"""Lanes: the topic that a directive is published on follows from its tenant and, in BURST mode, its document.

The numbers never change, because consumers rely on the order of messages within a lane.
"""

from typing import Final, Literal
from zlib import crc32

Mode = Literal["DEFAULT", "BURST"]
LANES: Final = 16


def routing_key(tenant: str, mode: Mode, doc_id: str | None) -> str:
    """Returns the key that selects the lane. Tenant and document are joined without a separator."""
    return tenant + (doc_id or "") if mode == "BURST" else tenant


def lane_of(key: str) -> int:
    return crc32(key.encode()) % LANES


def topic_of(lane: int) -> str:
    return f"global-bus-p{lane}"
