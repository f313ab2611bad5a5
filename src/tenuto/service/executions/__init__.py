"""Definitions, executions and what people do with them: the face that speaks of executions."""

from fastapi import APIRouter

from .audit import face as audit
from .definitions import face as definitions
from .dlq import face as dlq
from .executions import face as executions
from .history import face as history
from .people import face as people


def router() -> APIRouter:
    found = APIRouter()
    for face in (definitions, executions, history, people, dlq, audit):
        found.include_router(face)
    return found
