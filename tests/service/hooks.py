"""For Schemathesis: what it starts is of a definition that there is, so that it has executions to go on with.

Nor does it retry from a step that there is not: that is not found, though the execution is.
"""

from typing import Any

import schemathesis


@schemathesis.hook
def map_body(context: Any, body: Any) -> Any:
    operation = context.operation
    if operation is not None and (operation.method, operation.path) == ("post", "/v1/executions"):
        return {"definition": "asks"} if isinstance(body, dict) else body
    if operation is not None and operation.path.endswith("}:retry") and isinstance(body, dict):
        return {name: value for name, value in body.items() if name != "from"}
    return body
