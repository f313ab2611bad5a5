"""Definitions, executions and what people do with them: the face that speaks of executions."""

from typing import Any

from starlette.routing import BaseRoute

from tenuto.service.http.lean import Short

from .audit import face as audit
from .definitions import face as definitions
from .dlq import face as dlq
from .executions import face as executions
from .history import face as history
from .many import face as many
from .operations import face as operations
from .people import face as people

FACES = (executions, definitions, history, people, many, dlq, operations, audit)


def routes() -> list[BaseRoute]:
    """One after another, those that are asked for most first: they are tried in this order."""
    return [route for face in FACES for route in face.routes]


def shorts() -> list[Short[Any]]:
    """The short ways of those that have one."""
    return [short for face in FACES for short in face.shorts]
