"""The repository of the demo: a small shop, and a workflow in which an agent edits it.

Each shell task leaves a line in a file outside of the repository, a witness of which AgentOS knows nothing.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

from agentos.demo import agent

WORKFLOW = """\
name: cents
tasks:
  survey: {run: "echo survey >> ../executions.log; grep -n 2f *.py", effects: none}
  baseline: {run: "echo baseline >> ../executions.log; python -B test_cart.py", effects: none}
  edit:
    needs: [survey, baseline]
    agent: gemini
    prompt: Keep prices as whole cents, in every file.
    verify: python -B test_cart.py
  commit:
    needs: edit
    approve: Commit what the agent changed?
    run: echo commit >> ../executions.log; git commit --quiet --all --message 'Keep prices as whole cents'
    effects: external
"""
MENU = """\
name: menu
tasks:
  items:
    run: python -B -c 'import json, prices; print(json.dumps(sorted(prices.PRICES)))'
    output: json
    effects: none
  priced:
    for_each: ${{ tasks.items.output }}
    as: name
    run: sleep 0.2; grep -o ${{ name }}.*[0-9] prices.py
    effects: none
  test: {needs: priced, run: python -B test_cart.py && echo every price is right, effects: none}
"""
PRINT = """\
name: print
tasks:
  proof:
    run: python -B -c 'from cart import line; print(line("tea"))' | tee proof.txt
  print:
    needs: proof
    approve: Print the menu as proof.txt has it?
    run: cat proof.txt
    effects: external
"""
CART = """\
from prices import PRICES

def line(item):
    return f"{item} {PRICES[item]:.2f}"

def total(items):
    return f"total {sum(map(PRICES.get, items)):.2f}"

def mean(items):
    return f"mean {sum(map(PRICES.get, items)) / len(items):.2f}"
"""
FILES = {
    "cents.yaml": WORKFLOW,
    "menu.yaml": MENU,
    "print.yaml": PRINT,
    "cart.py": CART,
    "prices.py": 'PRICES = {"tea": 2.50, "cake": 3.10}\n',
    "test_cart.py": """\
from cart import line, mean, total

said = line("tea"), total(["tea", "cake"]), mean(["tea", "cake"])
assert said == ("tea 2.50", "total 5.60", "mean 2.80"), said
""",
}
EDITED = {
    "cart.py": CART.replace(":.2f", " / 100:.2f"),
    "prices.py": 'PRICES = {"tea": 250, "cake": 310}\n',
}
"""What the files of the agent are in the end."""


def move_in(folder: Path) -> None:
    """Let the environment be that of the demo: its agent comes first, and nobody's settings or state are touched."""
    for name in [name for name in os.environ if name.startswith(("AGENTOS_", "GIT_"))]:
        del os.environ[name]
    os.environ |= {
        "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "GEMINI_CLI_HOME": str(folder / "agent"),
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "TMPDIR": str(folder),  # what a killed process leaves there goes with the rest
        "XDG_STATE_HOME": str(folder / "state"),  # and no index of worktrees remembers a folder that is gone
    }


def make_shop(folder: Path) -> Path:
    """The repository, with its files committed; the programs that its workflow needs stand beside it."""
    (folder / "bin").mkdir()
    for name, arguments in {"python": "", "gemini": f"-I {shlex.quote(agent.__file__)} "}.items():
        program = folder / "bin" / name
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {arguments}"$@"\n')
        program.chmod(0o755)
    shop = folder / "shop"
    shop.mkdir()
    for name, text in FILES.items():
        (shop / name).write_text(text)
    for typed in (
        ["init", "--quiet", "--template="],
        ["config", "user.name", "Demo"],
        ["config", "user.email", "demo@localhost"],
        ["add", "."],
        ["commit", "--quiet", "--message", "A shop"],
    ):
        subprocess.run(["git", *typed], cwd=shop, check=True)
    return shop
