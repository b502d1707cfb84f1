"""Breaks a promise on purpose and sees whether a test notices: `python tools/mutate.py [NAME…]`, or `make mutants`.

tools/mutants.toml lists the mutations, each with the promise it breaks, one piece of text to replace, and the tests
that ought to fail. They are applied one at a time to a copy of the project; the project itself is not touched.

A mutation is `caught` when a test fails, and `survived` when all pass. Two more words keep it honest: `no longer
applies` where the text is not found exactly once (the code has moved on, and the table must follow), and `broken` where
the tests could not be run, or fail without the mutation too. Exit code 0 only if every mutation was caught.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
TABLE = Path(__file__).with_name("mutants.toml")
COPIED = ("src", "tests", "tools", "pyproject.toml", "README.md", "docs")
LIMIT_S = 600


class Mutant(NamedTuple):
    name: str
    breaks: str
    """The promise."""
    file: str
    old: str
    new: str
    tests: list[str]
    """As pytest takes them, options included."""


class Verdict(NamedTuple):
    word: str
    said: str = ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("names", nargs="*", help="mutations to try (default: all)")
    parser.add_argument("--list", action="store_true", help="name them, say which still apply, and run nothing")
    parser.add_argument("--quick", action="store_true", help="take for granted that the tests pass without a mutation")
    asked = parser.parse_args()
    mutants = read_table()
    if unknown := set(asked.names) - {mutant.name for mutant in mutants}:
        parser.error(f"no mutation is called {', '.join(sorted(unknown))}")
    chosen = [mutant for mutant in mutants if not asked.names or mutant.name in asked.names]
    if asked.list:
        for mutant in chosen:
            print(f"{mutant.name:32} {'' if applies(mutant, ROOT) else 'NO LONGER APPLIES: '}{mutant.breaks}")
        return 0 if all(applies(mutant, ROOT) for mutant in chosen) else 1
    counts: dict[str, int] = {}
    with tempfile.TemporaryDirectory(prefix="agentos-mutants-") as scratch:
        copy = copy_project(Path(scratch))
        for mutant in chosen:
            began = time.monotonic()
            verdict = judge(mutant, copy, sound=not asked.quick)
            counts[verdict.word] = counts.get(verdict.word, 0) + 1
            took = time.monotonic() - began
            print(f"{verdict.word:18} {mutant.name:32} {took:5.1f}s  {verdict.said or mutant.breaks}", flush=True)
    print(", ".join(f"{count} {word}" for word, count in counts.items()), f"of {len(chosen)}")
    return 0 if counts.keys() <= {"caught"} else 1


def read_table() -> list[Mutant]:
    table = tomllib.loads(TABLE.read_text())
    return [Mutant(name, **entry) for name, entry in table.items()]


def copy_project(scratch: Path) -> Path:
    """What tests need of the project: they find the sources by where they lie themselves."""
    copy = scratch / "project"
    copy.mkdir()
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copyfile(source, copy / name)
    return copy


def applies(mutant: Mutant, root: Path) -> bool:
    file = root / mutant.file
    return file.is_file() and file.read_text().count(mutant.old) == 1


def judge(mutant: Mutant, copy: Path, *, sound: bool) -> Verdict:
    if not applies(mutant, copy):
        return Verdict("no longer applies", f"{mutant.file} does not have once: {mutant.old.strip().splitlines()[0]}")
    if sound and (before := run_tests(mutant, copy)).word != "survived":
        return Verdict("broken", f"without the mutation: {before.word}: {before.said}")
    file = copy / mutant.file
    text = file.read_text()
    file.write_text(text.replace(mutant.old, mutant.new))
    try:
        return run_tests(mutant, copy)
    finally:
        file.write_text(text)


def run_tests(mutant: Mutant, copy: Path) -> Verdict:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--no-header", *mutant.tests]
    # Nothing compiled is kept: a file that is written twice within a second would be taken for the same.
    env = {**os.environ, "PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(command, cwd=copy, env=env, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return Verdict("caught", f"by nothing but the clock: its tests took more than {LIMIT_S} s")
    if done.returncode == 0:
        return Verdict("survived")
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    if done.returncode == 1 and failed is not None:
        return Verdict("caught", f"by {failed[1]}")
    return Verdict("broken", (done.stdout + done.stderr).strip().splitlines()[-1] if done.stdout else done.stderr)


if __name__ == "__main__":
    sys.exit(main())
