"""The built-in handler `log`: a line in the worker's log, with what its author wants to see there."""

import logging
from typing import Any, Literal

from msgspec import Struct

from tenuto.context import SagaContext
from tenuto.redaction import summary

from .outgoing import read_with

logger = logging.getLogger("tenuto.handlers.log")

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class Line(Struct, forbid_unknown_fields=True, kw_only=True):
    """`with`. What looks secret in it is masked."""

    message: str
    level: Literal["debug", "info", "warning", "error"] = "info"
    fields: dict[str, Any] = {}


async def call(given: object, ctx: SagaContext) -> None:
    line = read_with(given, Line, "log")
    about = {
        "action": "step_log",
        "execution_id": ctx.execution_id,
        "definition": ctx.saga,
        "step_id": ctx.step_id,
        "tenant": ctx.tenant,
        "correlation_id": ctx.correlation_id,
        "fields": {summary(name): summary(f"{value}") for name, value in line.fields.items()},
    }
    logger.log(_LEVELS[line.level], "%s", summary(line.message), extra=about)
