"""Definitions, executions and what people do with them: the face that speaks of executions."""

from fastapi import APIRouter

from .definitions import face as definitions
from .executions import face as executions


def router() -> APIRouter:
    found = APIRouter()
    for face in (definitions, executions):
        found.include_router(face)
    return found
