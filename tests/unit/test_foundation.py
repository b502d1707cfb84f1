"""The promises of the project's own files: quiet import, sealed locks, a Makefile that explains itself."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import agentos

ROOT = Path(__file__).parents[2]
PACKAGE = Path(agentos.__file__).parent
EXTRAS = {"click", "coverage", "dbos", "hypothesis", "langgraph", "pydantic", "pytest", "rich", "sqlalchemy", "yaml"}
LOCKS = ("core", "test", "lint", "bench", "lock")

WATCHED_IMPORT = """
import json, os, sys
touched = []
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
LOUD = ("os.mkdir", "os.rename", "os.remove", "os.chmod", "os.fork", "os.posix_spawn", "socket.", "subprocess.",
        "sqlite3.connect")
def watch(event, arguments):
    if event.startswith(LOUD) or event == "open" and arguments[2] & WRITING:
        touched.append([event, repr(arguments)])
sys.addaudithook(watch)
import agentos
print(json.dumps({"touched": touched, "modules": sorted(sys.modules)}))
"""


def import_in_a_fresh_process(cwd: Path) -> dict[str, list[str]]:
    quiet = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    done = subprocess.run(
        [sys.executable, "-B", "-c", WATCHED_IMPORT],
        cwd=cwd,
        env=quiet | {"PYTHONPATH": str(PACKAGE.parent)},
        capture_output=True,
        check=True,
        text=True,
    )
    assert done.stderr == ""
    answer: dict[str, list[str]] = json.loads(done.stdout)
    return answer


def project_files() -> list[Path]:
    """Every file that is, or is about to be, in the repository."""
    asked = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if asked.returncode != 0:
        pytest.skip("not a git checkout")
    return [path for name in set(asked.stdout.split("\0")) if name and (path := ROOT / name).is_file()]


def make(*arguments: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    program = shutil.which("make")
    if program is None:
        pytest.skip("make is not installed")
    # The flags and variables of a `make test PYTHON=...` around us must not reach this one.
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "PYTHON"))}
    if path is not None:
        env["PATH"] = path
    return subprocess.run([program, "-C", str(ROOT), *arguments], env=env, capture_output=True, text=True)


def pinned(lock: str) -> dict[str, str]:
    text = (ROOT / "requirements" / f"{lock}.txt").read_text()
    return dict(re.findall(r"^([a-z0-9][a-z0-9.-]*)==(\S+) \\$", text, flags=re.MULTILINE))


def test_importing_agentos_pulls_in_none_of_the_extras(tmp_path: Path) -> None:
    modules = {name.partition(".")[0] for name in import_in_a_fresh_process(tmp_path)["modules"]}
    assert "agentos" in modules
    assert modules & EXTRAS == set()


def test_importing_agentos_touches_no_file_process_or_network(tmp_path: Path, home: Path) -> None:
    assert import_in_a_fresh_process(tmp_path)["touched"] == []
    assert list(tmp_path.iterdir()) == []
    assert list(home.iterdir()) == []


def test_the_project_names_no_registry_host_and_no_machine_path() -> None:
    # Spelled in pieces, so that this file is not its own finding.
    hosts = "|".join(
        ["pypi" + r"\.org", "files" + r"\.pythonhosted", "npmjs" + r"\.(org|com)", "deb" + r"\.debian\.org"]
    )
    paths = r"(?<![\w.})\]])/(" + "|".join(["work", "root", "opt/pypi", "opt/wheels"]) + r")/"
    forbidden = re.compile(f"{hosts}|{paths}")
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path in project_files()
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1)
        if forbidden.search(line)
    ]
    assert found == []


def test_runs_of_the_project_itself_are_not_committed() -> None:
    assert ".agentos/" in (ROOT / ".gitignore").read_text().splitlines()


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_holds_pins_with_hashes_and_no_options(lock: str) -> None:
    lines = (ROOT / "requirements" / f"{lock}.txt").read_text().splitlines()
    assert [
        line for line in lines if not re.match(r"[a-z0-9][a-z0-9.-]*==\S+ \\$|    --hash=sha256:|\s*#|$", line)
    ] == []
    assert len(pinned(lock)) == sum("==" in line for line in lines) > 0


@pytest.mark.parametrize("lock", ["core", "test", "lint", "bench"])
def test_a_lock_is_in_step_with_pyproject(lock: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    asked = [*project["project"]["dependencies"], *project["project"]["optional-dependencies"].get(lock, [])]
    if lock != "lint":
        asked += project["build-system"]["requires"]  # the editable install must find it without an index
    versions = pinned(lock)
    stale = [text for text in asked if versions.get((need := Requirement(text)).name, "0") not in need.specifier]
    assert stale == [], "run `make lock`"


def test_locks_that_share_an_environment_agree() -> None:
    core, test, lint = pinned("core"), pinned("test"), pinned("lint")
    assert core.items() <= test.items()
    assert {name: test[name] for name in test.keys() & lint.keys()}.items() <= lint.items()


def test_every_data_file_of_the_package_is_shipped() -> None:
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["agentos"]
    shipped = {path for pattern in patterns for path in PACKAGE.glob(pattern)}
    files = [path for path in PACKAGE.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    # Python that is in no package, such as what `agentos init` writes, is data too.
    others = [path for path in files if path.suffix != ".py" or not (path.parent / "__init__.py").exists()]
    assert PACKAGE / "py.typed" in others
    assert [path for path in others if path not in shipped] == []


def test_every_make_target_has_help() -> None:
    rules = re.findall(r"^([a-z][a-z-]*):(?!=)(.*)$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert [target for target, rest in rules if "## " not in rest] == []
    shown = make("help").stdout
    assert [target for target, _ in rules if f"make {target} " not in shown] == []
    assert make().stdout == shown


def test_a_missing_python_is_told_with_what_to_install() -> None:
    told = make("preflight", "PYTHON=python3.99")
    assert told.returncode != 0
    assert "python3.99 is missing" in told.stderr
    assert "apt-get install python3.99 python3.99-venv" in told.stderr


def test_a_missing_venv_module_and_git_are_told_together(tmp_path: Path) -> None:
    # A Python without ensurepip, as Debian ships it, and nothing else but a shell.
    python = tmp_path / "python3"
    python.write_text(f'#!/bin/sh\ncase "$2" in *ensurepip*) exit 1;; esac\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    told = make("preflight", path=str(tmp_path))
    assert told.returncode != 0
    assert "apt-get install git" in told.stderr
    assert "apt-get install python3-venv" in told.stderr


def test_an_old_python_is_told(tmp_path: Path) -> None:
    python = tmp_path / "python3"
    python.write_text('#!/bin/sh\ncase "$1" in --version) echo "Python 3.9.2";; *) exit 1;; esac\n')
    python.chmod(0o755)
    told = make("preflight", path=f"{tmp_path}:{os.environ['PATH']}")
    assert told.returncode != 0
    assert "Python 3.11 or newer is needed, and python3 is Python 3.9.2" in told.stderr
