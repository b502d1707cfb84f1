"""A newcomer's path: a fresh clone, the README's commands, then the tutorial's, exactly as printed.

What is tested is what is committed. The clone is installed as the README says, into an environment of its own; only its
dependencies are those that this interpreter has already, so that nothing is fetched.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.conftest import git
from tests.e2e.typing_documents import blocks, follow

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a checkout: there is nothing to clone"),
]


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh clone with what `make demo` makes in it: an environment `.venv` that has the package."""
    root = tmp_path_factory.mktemp("newcomer") / "agentos"
    git("clone", "--quiet", "--no-hardlinks", str(ROOT), str(root), cwd=ROOT)
    environment = root / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    python = environment / "bin" / "python"
    packages = Path(_said(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    # After its own folder on the path, so that what is installed there is what is found.
    lent = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (packages / "lent.pth").write_text("".join(f"{folder}\n" for folder in sorted(lent)))
    _said(python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation", str(root))
    (environment / "bin" / "pip").touch()
    (environment / ".core").touch()  # for make: all is there already
    return root


def _said(*command: str | Path) -> str:
    quiet = {"PIP_NO_CACHE_DIR": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_ROOT_USER_ACTION": "ignore"}
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(command, env={**clean, **quiet}, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture
def shop(clone: Path, tmp_git_repo: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of the newcomer's own, with the environment of the clone activated."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setenv("PATH", str(clone / ".venv" / "bin"), prepend=":")
    found = _said("agentos", "--version"), _said("python", "-c", "import agentos; print(agentos.__file__)")
    assert found[0].startswith("agentos ")
    assert Path(found[1].strip()).is_relative_to(clone / ".venv"), "another AgentOS than the one that was installed"
    return tmp_git_repo


def test_the_demonstration_works_as_typed(clone: Path, shop: Path) -> None:
    readme = (clone / "README.md").read_text()
    assert "make demo" in [line.partition("#")[0].strip() for line in readme.splitlines()]
    # What a make around this test was told (another PYTHON, say) is not what the newcomer types.
    typed = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "PYTHON"))}
    done = subprocess.run(["make", "demo"], cwd=clone, env=typed, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SIGKILL" in done.stdout


@pytest.mark.parametrize("document", ["README.md", "docs/tutorial.md"])
def test_each_command_works_as_printed(document: str, clone: Path, shop: Path) -> None:
    assert any(block.mark.startswith("run") for block in blocks(clone / document))
    follow(clone / document, shop)
