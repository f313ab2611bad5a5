"""JSON Schemas that definitions bring along."""

import socket

import msgspec
import pytest

from tenuto.values.schema import Schema, pointer, schema_problem


def test_a_schema_on_another_host_is_never_fetched() -> None:
    """Publishing would otherwise make requests for strangers, and so would every check of a result."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        problem = schema_problem({"$ref": f"http://127.0.0.1:{server.getsockname()[1]}/schema.json"})
        with pytest.raises(BlockingIOError):
            server.accept()
    assert problem is not None


@pytest.mark.parametrize("schema", [3, "object", ["object"], {"type": "strang"}, {"pattern": "("}])
def test_what_is_no_schema_is_told(schema: object) -> None:
    assert schema_problem(schema) is not None  # type: ignore[arg-type]  # what a stranger may send


def test_problems_say_where_and_what_was_expected_and_never_what_was_found() -> None:
    schema = Schema({"properties": {"a/b": {"type": "integer"}, "mail": {"format": "email"}}, "required": ["n"]})
    text = b'{"a/b":"top secret","mail":"top secret"}'
    problems = schema.problems(msgspec.json.decode(text), text)
    assert sorted((problem.path, problem.code) for problem in problems) == [
        ("/a~1b", "type"),
        ("/mail", "format"),
        ("/n", "required"),
    ]
    assert "top secret" not in "".join(map(str, problems))
    assert schema.summary({"n": 1}) is None


def test_a_pointer_is_escaped() -> None:
    assert pointer(["a/b", 0, "c~d"]) == "/a~1b/0/c~0d"
