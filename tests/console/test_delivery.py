"""The console as it is delivered: built files, their manifest, licences and lock files."""

import gzip
import hashlib
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent
SOURCES = ROOT / "console"
BUILT = ROOT / "src" / "tenuto" / "service" / "console"
MANIFEST = "manifest.sha256.json"


def _built() -> dict[str, Path]:
    found = (path for path in BUILT.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc"))
    return {path.relative_to(BUILT).as_posix(): path for path in found}


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def test_the_manifest_has_the_sum_of_every_file() -> None:
    files = _built()
    sums = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items() if name != MANIFEST}
    assert _json(files[MANIFEST]) == sums


def test_the_page_names_only_files_of_the_build() -> None:
    files = _built()
    page = files["index.html"].read_text(encoding="utf-8")
    named = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert named
    assert [name for name in named if name.removeprefix("./") not in files] == []


def test_every_dependency_has_its_licence() -> None:
    text = (BUILT / "LICENSES.txt").read_text(encoding="utf-8")
    for name, version in _json(SOURCES / "package.json")["dependencies"].items():
        assert f"{name} {version} (" in text


@pytest.mark.parametrize("folder", [SOURCES, SOURCES / "codegen"], ids=lambda folder: folder.name)
def test_the_lock_names_no_registry(folder: Path) -> None:
    packages = _json(folder / "package-lock.json")["packages"]
    assert len(packages) > 1
    assert [name for name, about in packages.items() if "resolved" in about] == []


def test_the_build_is_that_of_the_sources() -> None:
    made = subprocess.run(["make", "--silent", "console-same"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout + made.stderr


def test_the_build_is_small() -> None:
    sizes = {name: path.stat().st_size for name, path in _built().items()}
    assert sum(sizes.values()) < 1_500_000
    fonts = sum(size for name, size in sizes.items() if re.search(r"latin-wght.*\.woff2$", name))
    assert 0 < fonts < 90 * 1024


def test_the_first_page_is_small() -> None:
    files = _built()
    page = files["index.html"].read_text(encoding="utf-8")
    named = [name.removeprefix("./") for name in re.findall(r'(?:src|href)="([^"]*\.(?:js|css))"', page)]
    assert {Path(name).suffix for name in named} == {".js", ".css"}
    assert sum(len(gzip.compress(files[name].read_bytes())) for name in named) < 250 * 1024
