"""The built-in handler `log`: writes a line to the worker's log."""

import logging

from tenuto.authoring.context import SagaContext
from tenuto.values.redaction import redact_value, summary

from .given import Line
from .outgoing import read_with

logger = logging.getLogger("tenuto.handlers.log")

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


async def call(given: object, ctx: SagaContext) -> None:
    line = read_with(given, Line, "log")
    about = {
        "action": "step_log",
        "execution_id": ctx.execution_id,
        "definition": ctx.saga,
        "step_id": ctx.step_id,
        "tenant": ctx.tenant,
        "correlation_id": ctx.correlation_id,
        "fields": redact_value(line.fields),
    }
    logger.log(_LEVELS[line.level], "%s", summary(line.message), extra=about)
