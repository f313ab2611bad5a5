"""For Schemathesis: what it starts is of a definition that there is, so that it has executions to go on with."""

from typing import Any

import schemathesis


@schemathesis.hook
def map_body(context: Any, body: Any) -> Any:
    operation = context.operation
    if operation is not None and (operation.method, operation.path) == ("post", "/v1/executions"):
        return {"definition": "asks"} if isinstance(body, dict) else body
    return body
