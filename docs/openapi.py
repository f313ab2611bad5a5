"""Prints the OpenAPI document of the service, without starting one: `python -m docs.openapi`."""

import json
from typing import Any

from tenuto import Engine
from tenuto.service.app import create_app
from tenuto.settings import Settings


def document() -> dict[str, Any]:
    return create_app(Engine(), Settings()).openapi()


if __name__ == "__main__":
    print(json.dumps(document()))
