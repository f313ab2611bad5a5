"""`--app MODULE[:NAME]`."""

from pathlib import Path

import pytest

from tenuto.authoring.saga_source import saga_name
from tenuto.cli.app_loader import load_app
from tenuto.errors import DefinitionError

BEGIN = "from tenuto import Saga, SagaBuilder, saga, step\n"
ONE = '@saga("one")\nclass One(Saga[int, int]):\n    @step\n    async def a(self, n: int) -> int:\n        return n\n'
TWO = (
    ONE.replace("one", "two")
    .replace("One", "Two")
    .replace(":\n    @step", ":\n    def __init__(self, x: int) -> None: ...\n    @step")
)


def names(found: list[object]) -> list[str]:
    *sagas, module = found
    assert module.__class__.__name__ == "module"
    return [saga_name(each) for each in sagas]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> "Write":
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return Write(tmp_path)


class Write:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, name: str, text: str) -> str:
        (self.folder / f"{name}.py").write_text(BEGIN + text)
        return name


def test_a_module_gives_its_sagas(write: Write) -> None:
    assert names(load_app(write("app_a", ONE))) == ["one"]


def test_an_instance_goes_before_its_class(write: Write) -> None:
    app = write("app_b", f"{ONE}{TWO}two = Two(1)\nthree = SagaBuilder('three')\n")
    assert sorted(names(load_app(app))) == ["one", "three", "two"]


def test_a_name_gives_what_it_holds(write: Write) -> None:
    text = f"{ONE}{TWO}BOTH = [One, Two(1)]\ndef make():\n    return [Two(2)]\nfour = 4\n"
    app = write("app_c", text)
    assert names(load_app(f"{app}:BOTH")) == ["one", "two"]
    assert names(load_app(f"{app}:make")) == ["two"]
    assert names(load_app(f"{app}:One")) == ["one"]
    with pytest.raises(DefinitionError, match="int: neither a saga nor a list of sagas"):
        load_app(f"{app}:four")


def test_a_saga_that_needs_arguments_says_so(write: Write) -> None:
    with pytest.raises(DefinitionError, match="Two cannot be made without arguments") as caught:
        load_app(write("app_d", TWO))
    assert caught.value.hint is not None
    assert "MODULE:SAGAS" in caught.value.hint


def test_what_cannot_be_found_or_imported(write: Write) -> None:
    with pytest.raises(DefinitionError, match="There is no module 'nowhere_at_all'"):
        load_app("nowhere_at_all")
    with pytest.raises(DefinitionError, match="has no 'NONE'"):
        load_app(write("app_e", ONE) + ":NONE")
    with pytest.raises(DefinitionError, match=r"cannot be imported: ZeroDivisionError: division by zero .*line 2"):
        load_app(write("app_f", "1 / 0\n"))
    with pytest.raises(DefinitionError, match="cannot be imported: ModuleNotFoundError"):
        load_app(write("app_g", "import nowhere_at_all\n"))
