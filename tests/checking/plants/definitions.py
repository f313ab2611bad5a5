"""Definitions, keys and tenants."""

import hashlib
from collections.abc import Callable

import msgspec
from msgspec import Struct

from tenuto.kernel import events as e
from tenuto.storage.port import DefinitionRow
from tenuto.storage.shared.records import AdmissionRow, DuplicateKey, MessageRow, ReviewRecord, TaskRecord
from tests.checking.streams import altered, change, driven
from tests.kernel.build import definition, step
from tests.kernel.driver import Driver, given

from .planting import beside, notice, queued, replace, row_with, two_steps, violates, waits_for_person


def _document(edit: Callable[[bytes], bytes], *, hashed: bool) -> list[Struct]:
    def changed(row: DefinitionRow) -> DefinitionRow:
        document = edit(row.document)
        return replace(row, document=document, hash=hashlib.sha256(document).hexdigest() if hashed else row.hash)

    return change(driven(two_steps()), DefinitionRow, changed)


@violates("D1")
def _() -> list[Struct]:
    return _document(lambda document: document.replace(b'"description":""', b'"description":"other"'), hashed=False)


@violates("D2")
def _() -> list[Struct]:
    return altered(driven(two_steps()), e.ExecutionStarted, plan_hash="another")


@violates("D3")
def _() -> list[Struct]:
    return _document(lambda document: document.replace(b'"max_attempts":3', b'"max_attempts":0'), hashed=True)


@violates("D5")
def _() -> list[Struct]:
    run = Driver(replace(definition(step("a")), input_schema={"type": "string"}))
    run.start("fits")
    return altered(driven(run), e.ExecutionStarted, input=msgspec.Raw(b"7"))


@violates("K2")
def _() -> list[Struct]:
    records = driven(two_steps())
    return [*records[:2], DuplicateKey(tenant="t", key="k", executions=2), *records[2:]]


@violates("K8")
def _() -> list[Struct]:
    run = given(step("a"), concurrency_key="'k'")
    run.start(key="k")
    return change(driven(run), AdmissionRow, lambda row: replace(row, ahead=1))


@violates("I1")
def _() -> list[Struct]:
    return change(driven(waits_for_person()), ReviewRecord, lambda row: replace(row, tenant="another"))


@violates("I1")
def _() -> list[Struct]:
    return change(driven(queued()), TaskRecord, lambda row: replace(row, tenant="another"))


@violates("I1")
def _() -> list[Struct]:
    run = two_steps()
    return beside(run, replace(notice(run), tenant="another"))


@violates("D2")
def _() -> list[Struct]:
    """It was started with what nobody had published."""
    return change(driven(two_steps()), DefinitionRow, lambda row: replace(row, status="draft"))


@violates("D2")
def _() -> list[Struct]:
    return altered(driven(two_steps()), e.ExecutionStarted, definition="other")


@violates("D2")
def _() -> list[Struct]:
    return change(driven(two_steps()), DefinitionRow, lambda row: None)


@violates("D3")
def _() -> list[Struct]:
    return _document(lambda document: document.replace(b'"name":"test"', b'"name":"other"'), hashed=True)


@violates("D3")
def _() -> list[Struct]:
    return _document(lambda document: b"[]", hashed=True)


def _in_line(run: Driver, **fields: object) -> list[Struct]:
    return change(driven(run), AdmissionRow, lambda row: replace(row, **fields))


def _keyed(*, admitted: bool = True) -> Driver:
    run = given(step("a"), concurrency_key="'k'")
    run.start(key="k", admitted=admitted)
    return run


@violates("K8")
def _() -> list[Struct]:
    return change(driven(_keyed()), AdmissionRow, lambda row: None)


@violates("K8")
def _() -> list[Struct]:
    return _in_line(_keyed(), key="other")


@violates("K8")
def _() -> list[Struct]:
    """It is over, and still stands in line."""
    run = _keyed()
    (place,) = [record for record in driven(run) if isinstance(record, AdmissionRow)]
    run.succeed("a")
    return beside(run, place)


@violates("V2")
def _() -> list[Struct]:
    """The first in line, and nobody told it."""
    return driven(_keyed(admitted=False))


@violates("I1")
def _() -> list[Struct]:
    return _in_line(_keyed(), tenant="another")


@violates("I1")
def _() -> list[Struct]:
    return row_with(two_steps(), tenant="another")


@violates("I1")
def _() -> list[Struct]:
    return change(driven(two_steps()), MessageRow, lambda row: replace(row, tenant="another"))
