"""The endpoints for definitions, executions, reviews, dead letters, limits and the audit log."""

from typing import Any

from starlette.routing import BaseRoute

from tenuto.service.http.fast_path import FastRoute

from .audit import router as audit
from .bulk_commands import router as many
from .dead_letters import router as dlq
from .definitions import router as definitions
from .executions import router as executions
from .feed import router as feed
from .history import router as history
from .operations import router as operations
from .reviews import router as people

FACES = (executions, definitions, history, people, many, dlq, operations, audit, feed)


def routes() -> list[BaseRoute]:
    """All routes, the most used first: they are matched in this order."""
    return [route for face in FACES for route in face.routes]


def fast_routes() -> list[FastRoute[Any]]:
    """The fast paths of the endpoints that have one."""
    return [fast_route for face in FACES for fast_route in face.fast_routes]
