"""Definitions, executions and what people do with them: the face that speaks of executions."""

from typing import Any

from starlette.routing import BaseRoute

from tenuto.service.http.fast_path import FastRoute

from .audit import router as audit
from .bulk_commands import router as many
from .dead_letters import router as dlq
from .definitions import router as definitions
from .executions import router as executions
from .history import router as history
from .operations import router as operations
from .reviews import router as people

FACES = (executions, definitions, history, people, many, dlq, operations, audit)


def routes() -> list[BaseRoute]:
    """One after another, those that are asked for most first: they are tried in this order."""
    return [route for face in FACES for route in face.routes]


def fast_routes() -> list[FastRoute[Any]]:
    """The short ways of those that have one."""
    return [short for face in FACES for short in face.fast_routes]
