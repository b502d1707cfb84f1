"""What every test stands on: a home folder of its own, no stray variables, real git repositories.

Nothing here mocks git or the file system.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import settings

from agentos.workflow.place.trust import find_reaching, trust_settings
from tests.models.server import ModelServer

# Hypothesis picks its own profile on CI (the same examples every time); elsewhere only the deadline is in the way.
settings.register_profile("house", deadline=None)
settings.register_profile("quick", deadline=None, max_examples=30)  # `make test`; CI takes all of the usual hundred
settings.register_profile("long", deadline=None, max_examples=2500)  # pytest … --hypothesis-profile=long
if "CI" not in os.environ:
    settings.load_profile("house")

# A job in the background of a script ignores Ctrl-C and Ctrl-\, one of nohup a lost terminal, and so would every
# program that the tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
for _ignored in (signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(_ignored) is signal.SIG_IGN:
        signal.signal(_ignored, signal.SIG_DFL)

_KEPT = "AGENTOS_MATRIX"  # asks for the whole kill matrix; not a setting of the product
_SEED = "AGENTOS_MATRIX_SEED"  # what is drawn by lot from it


def pytest_configure() -> None:
    # Processes that share the work inherit it, and so draw the same.
    os.environ.setdefault(_SEED, str(random.SystemRandom().randrange(10**6)))


def pytest_report_header() -> str:
    return f"kill matrix: {_SEED}={os.environ[_SEED]} draws the same sample again"


class LinkedWorktree(NamedTuple):
    """A repository and a linked worktree of it, on a branch of its own, both at the same commit."""

    main: Path
    worktree: Path


def git(*arguments: str, cwd: Path) -> str:
    """Run git in `cwd`; its output without the last newline."""
    done = subprocess.run(["git", *arguments], cwd=cwd, check=True, capture_output=True, text=True)
    return done.stdout.removesuffix("\n")


def trust(root: Path) -> None:
    """Accept what the settings of `root` reach, as `agentos trust --yes` does; where nothing needs it, nothing."""
    if (reaching := find_reaching(root.resolve())) is not None:
        trust_settings(reaching)


def _clear(patch: pytest.MonkeyPatch, home: Path, *, keep: str = "") -> None:
    """Forget what the developer's shell says about us and about git, and move the home folder."""
    for name in list(os.environ):
        if name.startswith(("AGENTOS_", "GIT_", "XDG_")) and name != keep:
            patch.delenv(name)
    patch.setenv("HOME", str(home))


@pytest.fixture(scope="session", autouse=True)
def _away_from_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fixtures of wider scope than a test see no real home folder either."""
    with pytest.MonkeyPatch.context() as patch:
        _clear(patch, tmp_path_factory.mktemp("session-home"), keep=_KEPT)
        yield


@pytest.fixture(autouse=True)
def _own_home(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """An empty home folder for each test; a test that writes there without asking for `home` fails."""
    folder = tmp_path_factory.mktemp("home")
    _clear(monkeypatch, folder, keep=_KEPT)
    # Runs note their worktree in the state folder of the user, which is not the test's business.
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
    yield folder
    asked = {"home", "clean_env"} & set(request.fixturenames)
    if not asked and (found := sorted(entry.name for entry in folder.iterdir())):
        pytest.fail(f"the home folder was touched: {', '.join(found)} (use the fixture `home` if that is meant)")


@pytest.fixture
def home(_own_home: Path) -> Path:
    """The home folder of this test: empty, and its to fill."""
    return _own_home


@pytest.fixture
def clean_env(monkeypatch: pytest.MonkeyPatch, home: Path) -> pytest.MonkeyPatch:
    """No AGENTOS_*, GIT_* or XDG_* variable at all, and an empty home folder. Gives the monkeypatch to set some."""
    _clear(monkeypatch, home)
    return monkeypatch


@pytest.fixture(scope="session")
def _git_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `tmp_git_repo` is a copy of: making it anew would take seven processes."""
    root = tmp_path_factory.mktemp("template") / "repo"
    root.mkdir()
    git("init", "--quiet", "--initial-branch=main", cwd=root)
    for sample in (root / ".git/hooks").iterdir():
        sample.unlink()
    for setting, value in {
        "user.name": "Test",
        "user.email": "test@example.invalid",
        "commit.gpgsign": "false",
        "core.hooksPath": os.devnull,
    }.items():
        git("config", setting, value, cwd=root)
    (root / "README").write_text("a repository to test in\n")
    git("add", "README", cwd=root)
    git("commit", "--quiet", "--message", "first", cwd=root)
    return root


@pytest.fixture
def tmp_git_repo(tmp_path: Path, _git_template: Path) -> Path:
    """The root of a real repository with one commit, an identity of its own, and the branch `main`."""
    return copy_repository(_git_template, tmp_path / "repo")


def copy_repository(template: Path, root: Path) -> Path:
    """A repository as if it had been made here: what the index knows of its files is true of the copies."""
    shutil.copytree(template, root, symlinks=True)
    git("update-index", "-q", "--refresh", cwd=root)
    return root.resolve()


@pytest.fixture
def tmp_worktree(tmp_git_repo: Path) -> LinkedWorktree:
    """A repository and a linked worktree beside it: `main, worktree = tmp_worktree`."""
    worktree = tmp_git_repo.parent / "worktree"
    git("worktree", "add", "--quiet", "-b", "other", str(worktree), cwd=tmp_git_repo)
    return LinkedWorktree(main=tmp_git_repo, worktree=worktree.resolve())


@pytest.fixture
def model_server() -> Iterator[ModelServer]:
    """A model server on loopback that answers as the test says: see tests/models/server.py."""
    with ModelServer() as server:
        yield server
