"""Build, check and sign a release. Publishes nothing: the last lines say what to type for that.

    python tools/release.py --key ~/.ssh/id_ed25519            builds into dist/
    python tools/release.py --key … --rehearse                 also from a tree that is not clean, or not yet dated

What is built comes from the commit, not from the folder. The wheel is installed where nothing else is and has to
show the demonstration, killed and resumed, before it is signed.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NAMESPACE = "agentos-release"
"""What the signature is for: one over something else does not pass for it."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--key", type=Path, required=True, help="the SSH key to sign with")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="where the files go (default: dist/)")
    parser.add_argument("--rehearse", action="store_true", help="warn where a real release would refuse")
    given = parser.parse_args()

    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    for flaw in find_flaws(version):
        if not given.rehearse:
            sys.exit(f"{flaw}\nTo see the rest all the same: --rehearse")
        print(f"a release would stop here: {flaw}", file=sys.stderr)

    given.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        files = build(Path(scratch), given.out)
        wheel = next(file for file in files if file.suffix == ".whl")
        check_contents(wheel)
        try_out(wheel, version, Path(scratch))
    sums = given.out / "SHA256SUMS"
    sums.write_text("".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files))
    Path(f"{sums}.sig").unlink(missing_ok=True)
    subprocess.run(["ssh-keygen", "-Y", "sign", "-f", str(given.key), "-n", NAMESPACE, str(sums)], check=True)
    print(f"{given.out}: {', '.join(file.name for file in files)}, SHA256SUMS, SHA256SUMS.sig")
    print(f"Nothing was published. To do it:\n  git tag -s v{version} && git push origin v{version}")
    print(f"  twine upload {' '.join(str(file) for file in files)}")


def find_flaws(version: str) -> list[str]:
    """Why this commit is no release."""
    flaws = []
    if subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, check=True).stdout:
        flaws.append("there are changes that are not committed")
    changes = (ROOT / "CHANGELOG.md").read_text()
    if f"\n## {version} (" not in changes:
        flaws.append(f"CHANGELOG.md has no chapter {version}")
    elif f"\n## {version} (unreleased)" in changes:
        flaws.append(f"CHANGELOG.md has no date for {version}")
    return flaws


def build(scratch: Path, out: Path) -> list[Path]:
    """Source distribution and wheel, built from the commit by the build backend of pyproject.toml."""
    committed = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True).stdout
    source = scratch / "source"
    with tarfile.open(fileobj=io.BytesIO(committed)) as archive:
        archive.extractall(source, filter="data")
    stamp = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, check=True, text=True)
    backend = "from setuptools import build_meta as b; import sys; print(getattr(b, sys.argv[1])(sys.argv[2]))"
    files = []
    for kind in ("build_sdist", "build_wheel"):
        made = subprocess.run(
            [sys.executable, "-c", backend, kind, str(out.resolve())],
            cwd=source,
            env={**os.environ, "SOURCE_DATE_EPOCH": stamp.stdout.strip()},  # the same commit gives the same wheel
            capture_output=True,
            check=True,
            text=True,
        )
        files.append(out / made.stdout.splitlines()[-1])
    return files


def check_contents(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    foreign = [name for name in names if not name.startswith(("agentos/", "agentos_workflow-"))]
    if foreign or "agentos/py.typed" not in names:
        sys.exit(f"{wheel.name} is not right: {', '.join(foreign) or 'agentos/py.typed is missing'}")


def try_out(wheel: Path, version: str, scratch: Path) -> None:
    """Install the wheel where nothing else is and no compiler is asked, and see it work."""
    home = scratch / "clean"
    venv.create(home, with_pip=True)
    pip = [str(home / "bin" / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--only-binary", ":all:", str(wheel)], check=True)
    told = subprocess.run([home / "bin" / "agentos", "--version"], capture_output=True, check=True, text=True).stdout
    if version not in told:
        sys.exit(f"the wheel says {told.strip()!r}, and pyproject.toml says {version}")
    subprocess.run([home / "bin" / "agentos", "demo"], check=True, cwd=scratch)


if __name__ == "__main__":
    main()
