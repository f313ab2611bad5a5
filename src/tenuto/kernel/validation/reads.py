"""Validates expressions: they compile, the names they read exist, and come before them."""

from collections.abc import Iterator
from difflib import get_close_matches

from tenuto.errors import ExpressionError, Problem
from tenuto.kernel.definition import FAIL, JSON, SUCCEED, Scope
from tenuto.kernel.expression import compile_expression, compile_template, template_problems

from .tree import Place, Tree


def check_expression(
    source: str | None, pointer: str, roots: frozenset[str], reader: Place | None, tree: Tree
) -> Iterator[Problem]:
    if source is None:
        return
    try:
        expression = compile_expression(source, roots)
    except ExpressionError as error:
        yield Problem(pointer, "expression", error.message)
    else:
        yield from _of_reads(expression.steps, pointer, reader, tree)


def check_template(
    value: JSON, pointer: str, roots: frozenset[str], reader: Place | None, tree: Tree
) -> Iterator[Problem]:
    wrong = template_problems(value, roots)
    for inner, message in wrong:
        yield Problem(f"{pointer}{inner}", "expression", message)
    if not wrong:
        yield from _of_reads(compile_template(value, roots).steps, pointer, reader, tree)


def _of_reads(steps: tuple[str, ...], pointer: str, reader: Place | None, tree: Tree) -> Iterator[Problem]:
    for name in steps:
        read = tree.nearest(name, reader)
        if read is None:
            if not tree.has_planner:  # the planner may add it
                yield Problem(pointer, "unknown_step", unknown(name, tree.by_id, tree))
        elif isinstance(read.node, Scope):
            yield Problem(pointer, "unknown_step", f"{name!r} is a scope, and has no result: read one of its steps")
        elif reader is not None and (why := _why_not_before(read, reader)) is not None:
            yield Problem(pointer, "not_before", why)


def _why_not_before(read: Place, reader: Place) -> str | None:
    """Returns why a value may not exist yet; None if it exists, or if only a run can tell."""
    ours, theirs = reader.lineage(), read.lineage()
    shared = sum(a is b for a, b in zip(ours, theirs, strict=False))
    if shared == len(ours) or shared == len(theirs) or any(place.repeats for place in ours[:shared]):
        return None
    first, second, scope = theirs[shared], ours[shared], ours[shared - 1].node
    assert isinstance(scope, Scope)
    if scope.mode == "sequence":
        return f"{read.node.id!r} comes later in the sequence" if first.index > second.index else None
    if scope.mode == "parallel":
        return f"{read.node.id!r} runs at the same time, so its result may not be there"
    if first.node.id in _upstream(second):
        return None
    return f"{read.node.id!r} may not have run by then: add {first.node.id!r} to the `depends_on` of {second.node.id!r}"


def _upstream(place: Place) -> set[str]:
    assert place.parent is not None
    by_id = place.parent.by_id
    found = set(place.node.depends_on)
    queue = list(place.node.depends_on)
    for id in queue:  # `queue` grows during the loop
        new = [name for name in (by_id[id].node.depends_on if id in by_id else ()) if name not in found]
        found.update(new)
        queue.extend(new)
    return found


def unknown(name: str, candidates: dict[str, Place], tree: Tree, *, flow: bool = False) -> str:
    elsewhere = tree.by_id.get(name)
    if elsewhere is not None and name not in candidates:
        return f"{name!r} stands in another scope ({elsewhere.pointer}): only steps side by side can be named here"
    close = get_close_matches(name, list(candidates)[:200], n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(list(candidates)[:10]) or 'none'}"
    also = f"; `{SUCCEED}` and `{FAIL}` end the flow" if flow else ""
    return f"there is no step {name!r}: {hint}{also}"
