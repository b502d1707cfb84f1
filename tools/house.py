"""The house in numbers: what a newcomer meets in src/, as one table.

    python tools/house.py                 the table
    python tools/house.py --names         and the names behind its counts
    python tools/house.py --journeys      and the files that a run and a resume go through (takes seconds)
    python tools/house.py --root OTHER    of another checkout

Names are judged by people: nothing here fails. tests/unit/test_house.py holds what must hold.
"""

from __future__ import annotations

import argparse
import ast
import io
import os
import re
import statistics
import subprocess
import sys
import tempfile
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

IRREGULAR = frozenset(
    {"begun", "bound", "broken", "brought", "built", "chosen", "done", "drawn", "driven", "found", "given", "gone"}
    | {"held", "heard", "hidden", "kept", "known", "left", "lost", "made", "meant", "met", "paid", "said", "seen"}
    | {"sent", "shown", "spent", "stood", "taken", "taught", "thought", "told", "understood", "won", "written"}
)
NOT_PARTICIPLES = frozenset({"embed", "feed", "need", "proceed", "red", "seed", "shed", "speed", "succeed"})
PARTICLES = frozenset(
    {"again", "apart", "aside", "at", "away", "back", "before", "by", "down", "for", "from", "here", "in", "into"}
    | {"of", "off", "on", "out", "over", "to", "up", "with"}
)
NOT_GERUNDS = frozenset({"string", "ring", "thing", "during", "nothing"})
ACCESSORS = frozenset({"property", "cached_property"})

LAYOUT = (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Module:
    """One file, parsed once."""

    def __init__(self, path: Path, source: Path) -> None:
        self.path = path.relative_to(source)
        self.text = path.read_text()
        self.tree = ast.parse(self.text)
        self.name = ".".join(self.path.with_suffix("").parts).removesuffix(".__init__")
        self.functions = [node for node in ast.walk(self.tree) if isinstance(node, Function)]
        self.classes = [node for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef)]

    @property
    def lines(self) -> int:
        return len(self.text.splitlines())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1], help="of the checkout to measure")
    parser.add_argument("--names", action="store_true", help="print the names behind the counts, too")
    parser.add_argument("--journeys", action="store_true", help="run and resume a workflow, and list the files entered")
    asked = parser.parse_args()
    source = asked.root.resolve() / "src"
    modules = [Module(path, source) for path in sorted(source.rglob("*.py"))]
    for what, value in rows(modules):
        print(f"{what:48} {value}")
    if asked.names:
        print_names(modules)
    if asked.journeys:
        print_journeys(source)


def rows(modules: list[Module]) -> Iterator[tuple[str, str]]:
    functions = [function for module in modules for function in module.functions]
    lengths = sorted(_length(function) for function in functions)
    sizes = sorted(module.lines for module in modules)
    folder, most = fullest_folder(modules)
    once = [name for module in modules for name in helpers_called_once(module)]
    methods, attributes, biggest = biggest_class(modules)
    yield "lines · files", f"{sum(sizes):,} · {len(modules)}"
    yield "most files in one folder (commands/ aside)", f"{most} ({folder})"
    yield "functions named by a bare participle", str(len(list(participles(modules))))
    yield "modules named by a gerund", str(len(list(gerunds(modules))))
    yield "class names used more than once", str(len(list(repeated_classes(modules))))
    yield "private functions with one caller", f"{len(once) / len(functions):.0%} of {len(functions):,} functions"
    yield "imports of own modules, per module", f"{own_imports(modules):.1f}"
    yield "comments per 100 code lines", f"{comments(modules):.1f}"
    yield "biggest class: methods · attributes", f"{methods} · {attributes} ({biggest})"
    yield "file median · p90 · max", f"{statistics.median(sizes):.0f} · {_p90(sizes)} · {sizes[-1]}"
    yield "function p90 · max", f"{_p90(lengths)} · {lengths[-1]}"


def fullest_folder(modules: list[Module]) -> tuple[str, int]:
    counts = Counter(str(module.path.parent) for module in modules if module.path.parent.name != "commands")
    return counts.most_common(1)[0]


def participles(modules: list[Module]) -> Iterator[str]:
    """Functions and methods that are called by nothing but a participle; attributes may be."""
    for module in modules:
        for function in module.functions:
            if not _is_accessor(function) and _is_participle(function.name):
                yield f"{module.path}:{function.lineno} {function.name}"


def gerunds(modules: list[Module]) -> Iterator[str]:
    for module in modules:
        last = module.name.rpartition(".")[2].split("_")[-1]
        if last.endswith("ing") and last not in NOT_GERUNDS:
            yield str(module.path)


def repeated_classes(modules: list[Module]) -> Iterator[str]:
    homes: dict[str, list[str]] = {}
    for module in modules:
        for node in module.classes:
            homes.setdefault(node.name, []).append(str(module.path))
    for name, paths in homes.items():
        if len(paths) > 1:
            yield f"{name}: {', '.join(paths)}"


def helpers_called_once(module: Module) -> Iterator[str]:
    """Private functions of a module that one place in it names."""
    named = Counter(node.id for node in ast.walk(module.tree) if isinstance(node, ast.Name))
    named.update(node.attr for node in ast.walk(module.tree) if isinstance(node, ast.Attribute))
    for function in module.functions:
        name = function.name
        if name.startswith("_") and not name.startswith("__") and named[name] == 1:
            yield f"{module.path}:{function.lineno} {name} ({_length(function)} lines)"


def own_imports(modules: list[Module]) -> float:
    names = {module.name for module in modules}
    count = 0
    for module in modules:
        imported: set[str] = set()
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Import):
                imported.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                whole = {f"{node.module}.{alias.name}" for alias in node.names} & names
                imported.update(whole or {node.module})
        count += len(imported & names)
    return count / len(modules)


def comments(modules: list[Module]) -> float:
    said = code = 0
    for module in modules:
        rows_with_code: set[int] = set()
        for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
            if token.type == tokenize.COMMENT:
                said += not re.match(r"#\s*(type:|noqa|---)", token.string)
            elif token.type not in (
                tokenize.NL,
                tokenize.NEWLINE,
                tokenize.INDENT,
                tokenize.DEDENT,
                tokenize.ENDMARKER,
            ):
                rows_with_code.update(range(token.start[0], token.end[0] + 1))
        code += len(rows_with_code)
    return 100 * said / code


def biggest_class(modules: list[Module]) -> tuple[int, int, str]:
    def measure(node: ast.ClassDef) -> tuple[int, int]:
        methods = sum(isinstance(part, Function) for part in node.body)
        own = {
            part.attr
            for part in ast.walk(node)
            if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store) and ast.unparse(part.value) == "self"
        }
        fields = (part.target for part in node.body if isinstance(part, ast.AnnAssign))
        own |= {field.id for field in fields if isinstance(field, ast.Name)}
        return methods, len(own)

    return max((*measure(node), node.name) for module in modules for node in module.classes)


def print_names(modules: list[Module]) -> None:
    once = [name for module in modules for name in helpers_called_once(module)]
    lists = {
        "bare participles": participles(modules),
        "gerunds": gerunds(modules),
        "class names used again": repeated_classes(modules),
        "private functions with one caller": once,
    }
    for title, names in lists.items():
        print(f"\n{title}")
        for name in names:
            print(f"  {name}")


# --- journeys -----------------------------------------------------------------------------------------------------

FLOW = "name: journey\ntasks:\n  first: {run: echo 1}\n  second: {needs: first, run: 'test -e go'}\n"
TRACER = """
import os, sys, threading
seen, until = [], os.environ["HOUSE_UNTIL"].split()
def is_import(frame):
    while frame is not None:
        if frame.f_code.co_name == "<module>" and "/src/agentos/" in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False
def look(frame, event, argument):
    code = frame.f_code
    folder, found, file = code.co_filename.rpartition("/src/agentos/")
    if event != "call" or not found or is_import(frame):
        return
    if file not in seen:
        seen.append(file)
    if code.co_name in until:
        print(*seen, sep="\\n", file=open(os.environ["HOUSE_FILES"], "w"))
        os._exit(0)
threading.setprofile(look)
sys.setprofile(look)
from agentos.cli.main import main
main()
"""


def print_journeys(source: Path) -> None:
    for what, command, until in (
        ("run → first process", ["run", "flow.yaml", "--id", "j"], "_spawn spawn spawn_child start_child"),
        ("resume → verdict", ["resume", "j"], "resume_plan plan_resume"),
    ):
        files = files_entered(source, command, until)
        print(f"\n{what}: {len(files)} files")
        for file in files:
            print(f"  {file}")


def files_entered(source: Path, command: list[str], until: str) -> list[str]:
    """The files of which a function is called on the way, in the order in which they are entered."""
    with tempfile.TemporaryDirectory() as folder:
        list_file = Path(folder, "files")
        env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("AGENTOS_")},
            "PYTHONPATH": str(source),
            "XDG_STATE_HOME": folder,
            "HOUSE_FILES": str(list_file),
            "HOUSE_UNTIL": until,
        }
        repo = Path(folder, "repo")
        subprocess.run(["git", "init", "--quiet", str(repo)], check=True)
        repo.joinpath("flow.yaml").write_text(FLOW)
        if command[0] == "resume":
            run = [sys.executable, "-m", "agentos", "run", "flow.yaml", "--id", "j"]
            subprocess.run(run, cwd=repo, env=env, capture_output=True, check=False)
        subprocess.run([sys.executable, "-c", TRACER, *command], cwd=repo, env=env, capture_output=True, check=False)
        return list_file.read_text().splitlines()


# --- small questions ----------------------------------------------------------------------------------------------


def _length(function: Function) -> int:
    """Its lines, without the docstring."""
    lines = (function.end_lineno or 0) - function.lineno + 1
    first = function.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        lines -= (first.end_lineno or 0) - first.lineno + 1
    return lines


def _p90(values: list[int]) -> int:
    return values[len(values) * 9 // 10]


def _is_accessor(function: Function) -> bool:
    return any(ast.unparse(part).rpartition(".")[2] in ACCESSORS for part in function.decorator_list)


def _is_participle(name: str) -> bool:
    first, *rest = name.strip("_").split("_")
    regular = first.endswith("ed") and first not in NOT_PARTICIPLES
    return (regular or first in IRREGULAR) and all(word in PARTICLES for word in rest)


if __name__ == "__main__":
    main()
