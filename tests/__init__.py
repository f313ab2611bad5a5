"""Tests, and the programs beside them (`python -m tests.crash` and others); all keep their files in memory."""

from tests.servers.folders import keep_in_memory

keep_in_memory()
