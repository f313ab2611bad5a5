"""The command line. So far it prepares databases; the rest comes with the service."""

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence

import tenuto
from tenuto.errors import TenutoError
from tenuto.storage import make_store

DEFAULT_URL = "sqlite:///tenuto.db"


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: 0 done, 1 it could not be done (standard error says why), 2 the command was not understood."""
    options = _parser().parse_args(arguments)
    try:
        asyncio.run(_migrate(options.url))
    except TenutoError as error:
        print(f"tenuto: {error}", file=sys.stderr)
        return 1
    print("the schema is up to date")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tenuto", description="A durable orchestration engine for Python.")
    parser.add_argument("--version", action="version", version=f"tenuto {tenuto.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    migrate = commands.add_parser("migrate", help="bring a database's schema up to date; safe to run twice")
    migrate.add_argument(
        "--url", default=os.environ.get("TENUTO_URL", DEFAULT_URL), help=f"TENUTO_URL, or {DEFAULT_URL}"
    )
    return parser


async def _migrate(url: str) -> None:
    store = make_store(url)
    await store.open(migrate=True)
    await store.close()
