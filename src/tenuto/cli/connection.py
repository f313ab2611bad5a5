"""What a command connects to: a service, or directly a database."""

import getpass
import os
import re
import shlex
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tenuto.values.names import DEFAULT_TENANT

from .output import print_to_stderr

if TYPE_CHECKING:
    from tenuto.api.engine import Engine
    from tenuto.settings import Settings


# Commands that use no service, and are not about one tenant.
DATABASE_COMMANDS = ("dev", "serve", "worker", "keys", "migrate", "restored", "export", "check")


@dataclass(slots=True)
class Connection:
    """The options that say what to work on and how to answer. Settings fill in the rest when they are needed."""

    url: str | None = None
    server: str | None = None
    tenant: str = DEFAULT_TENANT
    as_json: bool = False

    def command_line(self, command: str) -> str:
        """A command line to copy. It repeats the options of this one, so that it works on the same target."""
        return " ".join(["tenuto", *self._options(command.partition(" ")[0]), command])

    def with_options(self, text: str) -> str:
        """A text whose commands between backticks repeat the options of this one."""
        return re.sub("`tenuto ([a-z][^`]*)`", lambda found: f"`{self.command_line(found[1])}`", text)

    def _options(self, name: str) -> Iterator[str]:
        from tenuto.values.redaction import without_password

        given = {"--url": self.url}
        if name not in DATABASE_COMMANDS:
            given |= {"--server": self.server, "--tenant": None if self.tenant == DEFAULT_TENANT else self.tenant}
        elif name == "worker" and self.server and not self.url:
            given = {"--url": "URL"}  # which database a server has, only who runs it can tell
        for option, value in given.items():
            if value is not None:
                yield f"{option} {shlex.quote(without_password(value))}"

    def settings(self, **given: Any) -> "Settings":
        """An option wins over a setting; a database that was asked for, over a server that was not."""
        from tenuto.errors import SettingsError
        from tenuto.settings import GIVEN, load

        server = "" if self.url and not self.server else self.server
        try:
            return load(**{"url": self.url, "server": server} | given)
        except SettingsError as error:
            for problem in error.problems:
                source, _, name = problem.path.partition(": ")
                if source == GIVEN:  # an option, by the name of its setting
                    raise typer.BadParameter(problem.message, param_hint=f"--{name.removesuffix('s')}") from None
            raise

    @asynccontextmanager
    async def engine(
        self, *, creates: bool = False, reads: bool = False, all_tenants: bool = False
    ) -> AsyncIterator["Engine"]:
        """Opens an engine for a command. It runs no steps.

        `reads`: the command changes nothing, so it needs no write permission.
        `creates`: the command may create the database or migrate it.
        `all_tenants`: on a database, the engine is not scoped to a tenant.
        """
        from tenuto.api.engine import Engine

        settings = self.settings()
        if settings.server:
            self._check_tenant()
            async with Engine(settings.server, api_key=settings.api_key or None) as remote:
                yield remote
            return
        check_database_exists(settings.url, creates=creates)
        if not creates:
            await check_schema(settings.url)
        async with open_engine(settings.url, reads=reads) as engine:
            eyes = settings.four_eyes
            scoped = engine.scoped(tenant=self.tenant, actor=actor(), roles=["admin"], four_eyes=eyes)
            yield engine if all_tenants else scoped

    def database(self, url: str | None = None, *, creates: bool = False) -> str:
        """The URL for a command that needs a database. Prints a note if a server is set, which is not used."""
        from tenuto.values.redaction import redact_url

        settings = self.settings()
        found = url or settings.url
        if settings.server and not url:
            print_to_stderr(f"tenuto: this command uses the database {redact_url(found)}, not TENUTO_SERVER")
        check_database_exists(found, creates=creates)
        return found

    def _check_tenant(self) -> None:
        if self.tenant != DEFAULT_TENANT:
            told = "the API key decides the tenant at a service"
            raise typer.BadParameter(told, param_hint="--tenant")


@asynccontextmanager
async def open_engine(url: str, *, reads: bool) -> AsyncIterator["Engine"]:
    """An engine without a worker. On a database that refuses writes, one that only reads still opens."""
    from tenuto.api.engine import Engine
    from tenuto.errors import StorageError

    engine = Engine(url, worker=False)
    try:
        await engine.__aenter__()
    except StorageError as error:
        if not reads or error.code != "read_only":
            raise
        engine = Engine(url, worker=False, read_only=True)
        await engine.__aenter__()
    try:
        yield engine
    finally:
        await engine.close()


def actor() -> str:
    """The actor of this user, as recorded in histories and in the audit log."""
    try:
        return f"cli:{getpass.getuser()}"
    except (KeyError, OSError):  # a container may run under a number that has no name
        return f"cli:{os.getuid()}"


def check_database_exists(url: str, *, creates: bool) -> None:
    from tenuto.errors import NotSupported, StorageError

    if url.startswith("memory:"):
        raise NotSupported(
            "Only its own process can see memory://.",
            hint="set TENUTO_URL to a database, or TENUTO_SERVER to a service",
        )
    path = check_database(url)
    if path is not None and not creates and not path.exists():
        raise StorageError(
            f"There is no database {path}.",
            code="no_database",
            hint="set TENUTO_URL or TENUTO_SERVER, or create one here with `tenuto dev` or `tenuto migrate`",
        )


async def check_schema(url: str) -> None:
    """Whether there is one, of this release. Only what a role lacks, the engine tells better.

    An engine would make one, in a file of another program too, and change an older one, under those who work on it.
    """
    from tenuto.errors import StorageError
    from tenuto.storage import make_reader

    reader = make_reader(url)
    try:
        await reader.open()
    except StorageError as error:
        if error.code != "not_permitted":  # an engine that got further than this would go on
            raise
    else:
        await reader.close()


def check_database(url: str) -> Path | None:
    """Whether it can name one: in which file, if it is in one. What is in memory is not looked at here."""
    from tenuto.api.connection import DURABLE, LATER, REMOTE
    from tenuto.errors import NotSupported
    from tenuto.storage import DATABASE_URLS, sqlite_file, unsupported
    from tenuto.values.redaction import redact_url

    scheme = url.partition(":")[0]
    if scheme in REMOTE:
        raise NotSupported(
            f"{redact_url(url)} is the URL of a service, not of a database.",
            hint="name a service with --server or TENUTO_SERVER, and a database with --url or TENUTO_URL",
        )
    if scheme not in (*DURABLE, *LATER, "memory"):
        raise unsupported(url, *DATABASE_URLS)
    return Path(sqlite_file(url)[0]) if scheme == "sqlite" else None
