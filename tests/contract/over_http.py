"""The contract over HTTP: a client of a service, with the engine that runs its executions behind it."""

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tenuto import Engine
from tenuto.service.app import create_app
from tenuto.settings import Settings
from tests.servers.http import serving

# Every test of these modules runs over HTTP, too, except those below: starts, reads, commands, definitions. What
# happens inside an execution does not depend on the caller, and is not repeated.
MODULES = {
    "test_blocked_reasons",
    "test_clone_names",
    "test_cursors",
    "test_definitions",
    "test_fan_out",
    "test_feed",
    "test_lists",
    "test_overview",
    "test_bulk_commands",
    "test_reviews",
    "test_starts",
}
assert [name for name in MODULES if not (Path(__file__).parent / f"{name}.py").exists()] == []

# The tests that a client cannot run, and why.
_TENANT = "the tenant is that of the key, so that one client is one tenant: tests/service/test_access.py"
EXCEPT = {
    "test_lines_of_another_tenant_are_not_shown": _TENANT,
    "test_without_data_the_result_says_who_approved": _TENANT,
    "test_who_decides_is_recorded_and_audited": _TENANT,
    "test_a_scoped_engine_decides_for_its_own_actor_alone": _TENANT,
    "test_what_is_another_tenants_is_not_found": _TENANT,
    "test_a_scoped_engine_acts_for_its_tenant_alone": _TENANT,
    "test_keys_are_a_tenants_own": _TENANT,
    "test_a_key_is_free_again_when_its_execution_is_pruned": "pruning is done where the database is",
    "test_a_list_pages_on_by_itself": "starts go over several connections, and arrive in any order",
    "test_changes_of_other_tenants_are_not_in_the_feed": _TENANT,
    "test_an_overview_is_of_one_tenant": _TENANT,
    "test_newest_first_goes_on_where_a_page_ends": "hundreds of requests in a row: tests/service/test_lists.py",
}


def runs_over_http(module: str, test: str) -> bool:
    return module.rpartition(".")[2] in MODULES and test not in EXCEPT


class Client(Engine):
    """What is registered here is registered with the engine behind the service, which has to run it."""

    def __init__(self, address: str, api_key: str, behind: Engine) -> None:
        super().__init__(address, api_key=api_key)
        self.behind = behind

    def register(self, *sagas: object) -> None:
        self.behind.register(*sagas)
        super().register(*sagas)

    def handler(self, name: str, function: Callable[..., Any], *, tenants: Iterable[str] = ()) -> None:
        self.behind.handler(name, function, tenants=tenants)
        super().handler(name, function, tenants=tenants)


@asynccontextmanager
async def client_of(engine: Engine, *sagas: object) -> AsyncIterator[Engine]:
    key = await engine.keys.create(tenant="default", roles=["admin"], name="contract")
    async with serving(create_app(engine, Settings(rate_per_second=0))) as address:
        client = Client(address, key.token, engine)
        Engine.register(client, *sagas)
        async with client:
            yield client
