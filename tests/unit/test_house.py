"""The house keeps its shape: folders of a readable size, and a map in each of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import agentos

SOURCE = Path(agentos.__file__).parent
ROOT = Path(__file__).parents[2]
MOST = 15
"""Modules in one folder; beyond that nobody finds anything."""
FOLDERS = sorted(file.parent for file in SOURCE.rglob("__init__.py"))
MAPPED = [folder for folder in FOLDERS if folder.relative_to(SOURCE).parts[:1] not in ((), ("demo",), ("workflows",))]


def name_of(folder: Path) -> str:
    return folder.relative_to(SOURCE).as_posix()


@pytest.mark.parametrize("folder", FOLDERS, ids=name_of)
def test_a_folder_holds_no_more_than_a_reader_can_take_in(folder: Path) -> None:
    modules = [file.stem for file in folder.glob("*.py") if file.stem != "__init__"]
    assert len(modules) <= MOST or folder.name == "commands", sorted(modules)


@pytest.mark.parametrize("folder", [folder for folder in MAPPED if folder.name != "commands"], ids=name_of)
def test_a_folder_names_each_of_its_modules(folder: Path) -> None:
    inside = {file.stem for file in folder.glob("*.py") if not file.stem.startswith("__")}
    inside |= {file.parent.name for file in folder.glob("*/__init__.py")}
    text = (folder / "__init__.py").read_text()
    named = {line.split()[0] for line in text.splitlines() if line.strip()}
    assert inside <= named, f"the map of {name_of(folder)} does not name {sorted(inside - named)}"


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/**/*.md")), ids=lambda page: page.stem)
def test_a_document_names_modules_that_are_there(page: Path) -> None:
    named = set(re.findall(r"`(?:src/agentos/)?((?:[a-z_]+/)+[a-z_]+\.py)`", page.read_text()))
    ours = {name for name in named if (SOURCE / name.partition("/")[0]).is_dir()}
    assert sorted(name for name in ours if not (SOURCE / name).exists()) == []
