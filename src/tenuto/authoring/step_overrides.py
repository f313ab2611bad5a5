"""Overrides of timeouts, retry policies and limits of steps, as the settings of a deployment give them.

They change how the steps of a published version are attempted. The definition and its hash stay as they are.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields, replace
from typing import Any, Final

import msgspec

from tenuto.errors import Problem, SettingsError
from tenuto.kernel.definition import Definition, Node, Scope, Step
from tenuto.kernel.step_override import StepOverride, StepOverrides, override_nodes
from tenuto.kernel.validation import problems as problems_of

from .known_options import meant
from .problems import Problems, keyword_of
from .program import Program
from .settings import Retry, StepSettings
from .translator import Translator

SETTING: Final = "step_overrides"
OPTIONS: Final = ("timeout", "retry", "limits")
RETRY_OPTIONS: Final = tuple(each.name for each in fields(Retry) if each.name != "_")


class DeploymentOverrides:
    """The overrides of a deployment: by the name of a saga or definition, then by step id."""

    def __init__(self, given: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        problems = Problems()
        self._by_definition: dict[str, dict[str, StepOverride]] = {}
        for key, options in (given or {}).items():
            name, _, step = key.rpartition(".")
            if not name or not step:
                problems.add(_place(key), "bad_key", 'it must be "saga.step"')
            elif (override := _parse(key, options, problems)) is not None:
                self._by_definition.setdefault(name, {})[step] = override
        _refuse(problems.found)

    def __bool__(self) -> bool:
        return bool(self._by_definition)

    def apply(self, program: Program) -> Program:
        """Returns the program with a plan whose steps are overridden, as far as this version allows."""
        overrides = self._by_definition.get(program.name)
        if not overrides:
            return program
        plan = program.plan
        valid = {
            step: override
            for step, override in overrides.items()
            if step in _steps(plan.definition) and not _flaws(plan.definition, step, override)
        }
        return replace(program, plan=plan.override(valid)) if valid else program

    def check(self, known: Iterable[Definition]) -> None:
        """Refuses overrides that apply to no version of any of these definitions."""
        versions: dict[str, list[Definition]] = {}
        for definition in known:
            versions.setdefault(definition.name, []).append(definition)
        found: list[Problem] = []
        for name, overrides in self._by_definition.items():
            for step, override in overrides.items():
                found.extend(_unknown(name, step, override, versions))
        _refuse(found)


def _place(key: str) -> str:
    return f"{SETTING}, {key}"


def _refuse(found: list[Problem]) -> None:
    if found:
        raise SettingsError(problems=found, hint=f"correct {SETTING}")


# -- What is given -----------------------------------------------------------------------------------------------------


def _parse(key: str, options: object, problems: Problems) -> StepOverride | None:
    where, before = _place(key), len(problems.found)
    if not isinstance(options, Mapping) or not options:
        problems.add(where, "type", f"it must be a table with options. Options are: {', '.join(OPTIONS)}")
        return None
    _check_options(where, options, OPTIONS, problems)
    limits = options.get("limits")
    if limits is not None and not (isinstance(limits, list | tuple) and all(isinstance(one, str) for one in limits)):
        problems.add(f"{where}, limits", "type", "it must be a list of names of limits")
    retry = _retry(where, options.get("retry"), problems)
    if len(problems.found) > before:
        return None
    translator = Translator(where, problems)
    try:
        policy = translator.retry_policy(StepSettings(retry=retry, timeout=options.get("timeout")), None)
    except (TypeError, ValueError) as error:
        problems.add(where, "type", str(error))
        return None
    override = StepOverride(
        timeout_ms=policy.timeout_ms if options.get("timeout") is not None else None,
        retry_policy=policy if retry is not None else None,
        limits=None if limits is None else tuple(limits),
    )
    for flaw in _mistakes(override):
        problems.add(f"{where}, {keyword_of(_field(flaw))}", flaw.code, flaw.message)
    return override if len(problems.found) == before else None


def _check_options(where: str, given: Mapping[Any, Any], valid: Collection[str], problems: Problems) -> None:
    for name in given:
        if name not in valid:
            problems.add(where, "unknown_option", f"it has no option `{name}`{meant(str(name), valid)}")


def _retry(where: str, given: object, problems: Problems) -> Any:
    if not isinstance(given, Mapping):
        return given
    _check_options(f"{where}, retry", given, RETRY_OPTIONS, problems)
    return None if problems.found else Retry(**given)


def _mistakes(override: StepOverride) -> list[Problem]:
    """Values that no step can have, such as a retry policy without attempts."""
    step = override.apply(Step(id="step", handler="handler"))
    try:
        document = msgspec.json.encode(step)
        step = msgspec.json.decode(document, type=Step)
    except (TypeError, msgspec.MsgspecError) as error:
        return [Problem("", "type", str(error))]
    return problems_of(Definition(name="saga", version=1, steps=(step,)))


def _field(problem: Problem) -> str:
    return problem.path.removeprefix("/steps/0/")


# -- What it applies to ------------------------------------------------------------------------------------------------


def _steps(definition: Definition) -> dict[str, Step]:
    found: dict[str, Step] = {}

    def collect(nodes: tuple[Node, ...]) -> None:
        for node in nodes:
            if isinstance(node, Scope):
                collect(node.children)
            else:
                found[node.id] = node

    collect(definition.steps)
    return found


def _flaws(definition: Definition, step: str, override: StepOverride) -> list[str]:
    """Why this version cannot have the override."""
    if override.timeout_ms is not None and _steps(definition)[step].safety == "NOT_SAFE_TO_RETRY":
        # Any process may look up the outcome of a lost attempt, once the timeout of the plan is over.
        return ["the timeout of a step that is not safe to retry cannot be overridden: publish a new version"]
    overrides: StepOverrides = {step: override}
    changed = msgspec.structs.replace(definition, steps=override_nodes(definition.steps, overrides))
    before = {(each.path, each.code) for each in problems_of(definition)}
    return [each.message for each in problems_of(changed) if (each.path, each.code) not in before]


def _unknown(
    name: str, step: str, override: StepOverride, versions: Mapping[str, list[Definition]]
) -> Iterable[Problem]:
    where = _place(f"{name}.{step}")
    if name not in versions:
        text = f"there is no saga or definition {name!r}{meant(name, sorted(versions), kind='They')}"
        yield Problem(where, "unknown_definition", text)
        return
    with_step = [definition for definition in versions[name] if step in _steps(definition)]
    if not with_step:
        names = sorted({id for definition in versions[name] for id in _steps(definition)})
        yield Problem(where, "unknown_step", f"{name!r} has no step {step!r}{meant(step, names, kind='Steps')}")
        return
    flaws = [_flaws(definition, step, override) for definition in with_step]
    if all(flaws):
        yield Problem(where, "not_allowed", "; ".join(flaws[-1]))
