"""From nothing to a killed and resumed run: the commands a stranger types, and the seconds each takes.

    python tools/first_minute.py                              with this Python
    python tools/first_minute.py python3.12 python3.14        with others
    python tools/first_minute.py /srv/trixie /srv/sid         in clean systems: folders with a Python of their own, as
                                                              debootstrap makes them (needs root)

The wheel of the commit is installed from, into an environment of its own, and nothing may be compiled.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

sys.path.insert(0, str(Path(__file__).parents[1]))
from tools.release import build

TYPED = (
    "{python} -m venv try",
    "try/bin/python -m pip install --quiet --only-binary :all: ./{wheel}",
    "try/bin/agentos demo",
)


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        wheel = next(file for file in build(Path(scratch), Path(scratch)) if file.suffix == ".whl")
        print(
            "| where | Python | compiler | "
            + " | ".join(line.format(python="python3", wheel="*.whl") for line in TYPED)
        )
        print("|---|---|---" + "|---" * len(TYPED) + "|")
        results = [try_out(target, wheel) for target in sys.argv[1:] or [sys.executable]]
    sys.exit(not all(results))


def try_out(target: str, wheel: Path) -> bool:
    root = target if Path(target).is_dir() else ""
    inside = tempfile.mkdtemp(dir=f"{root}/tmp" if root else None)
    home = inside.removeprefix(root)
    shutil.copy(wheel, inside)
    variables = {"HOME": home, "PATH": "/usr/bin:/bin" if root else os.environ["PATH"], "LANG": "C.UTF-8"}
    variables |= {name: value for name, value in os.environ.items() if name.startswith(("PIP_CERT", "PIP_INDEX"))}

    def shell(line: str) -> subprocess.CompletedProcess[str]:
        command = ["sh", "-c", f"cd {home} && {line}"]
        return subprocess.run(
            [*(["/usr/sbin/chroot", root] if root else []), *command], capture_output=True, text=True, env=variables
        )

    try:
        python = "python3" if root else target
        version = shell(f"{python} --version").stdout.strip()
        compiler = "yes" if shell("command -v cc gcc clang").stdout else "none"
        seconds = []
        for line in TYPED:
            began = perf_counter()
            done = shell(line.format(python=python, wheel=wheel.name))
            if done.returncode:
                print(
                    f"| {target} | {version} | {compiler} | failed: {line} |\n{done.stdout}{done.stderr}",
                    file=sys.stderr,
                )
                return False
            seconds.append(f"{perf_counter() - began:.1f} s")
        print(f"| {target} | {version.removeprefix('Python ')} | {compiler} | {' | '.join(seconds)} |", flush=True)
        return True
    finally:
        shutil.rmtree(inside, ignore_errors=True)


if __name__ == "__main__":
    main()
