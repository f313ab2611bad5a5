"""The same program, with the same things happening around it, has the same history in every runtime.

More of it: `python -m tests.differential --programs 500`.
"""

import pytest

from tests.servers.postgres import Server

from .compare import compare, places

SHARDS = 4
PROGRAMS_PER_SHARD = 6


@pytest.mark.slow
@pytest.mark.parametrize("shard", range(SHARDS))
async def test_a_program_has_one_history(shard: int, postgres_server: Server) -> None:
    entries = 0
    for seed in range(shard * PROGRAMS_PER_SHARD, (shard + 1) * PROGRAMS_PER_SHARD):
        with places(postgres_server) as urls:
            entries += await compare(seed, urls)
    assert entries > 8 * PROGRAMS_PER_SHARD, "programs that do nothing differ in nothing"
