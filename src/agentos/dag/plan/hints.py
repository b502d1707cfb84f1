"""Hints: what in a task's own text speaks against running it twice. Looks at text alone, and runs nothing.

They are guesses, worth one line each. What holds is found out by running the task twice: `agentos prove`.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from itertools import dropwhile
from typing import NamedTuple

from agentos.dag.define.task import TaskDef

_END = frozenset(";&|\n(){}")
_OPERATOR = re.compile(r"&>>|<<<|<<-|&>|>>|<<|>&|<&|>\||<>|[><;&|\n()]")
_LEFT_OUT = re.compile(r"[ \t]+|\\\n|#[^\n]*")
_SUBSTITUTION = r"\$\((?:[^()]|\((?:[^()]|\((?:[^()]|\([^()]*+\)?)*+\)?)*+\)?)*+\)?|\$\{[^}]*\}?|`[^`]*`?"
_PIECE = re.compile(
    rf"""({_SUBSTITUTION}|[^ \t\n\\'"`;&|()<>])|\\(.?)|'([^']*)'?|"((?:{_SUBSTITUTION}|\\.?|[^"\\])*+)"?""", re.DOTALL
)
_WORTH_READING = re.compile(r">|\bgit\b|\btee\b|\bdate\b|RANDOM|EPOCH|\$\$|uuidgen")
"""Most scripts hold nothing of what is looked for, and need not be taken apart."""
_WRITES = frozenset({"&>>", "&>", ">>", ">", ">|"})
_VARIES = re.compile(r"\$\(date\b|`date\b|\$\{?(?:S?RANDOM|EPOCHSECONDS|EPOCHREALTIME)\b|\$\$|\$\(uuidgen\b")
_MAKES_FILES = frozenset({"touch", "mkdir", "cp", "mv", "tee"})
_UNHARMED = re.compile(r"/dev/|.*AGENTOS_OUTPUT|&|\d+$|-$")
_MKTEMP = re.compile(r"(\w+)=\"?(?:\$\(|`)\s*mktemp\b")
_ASSIGNMENT = re.compile(r"\w+=")
_APPENDING = re.compile(r"[bt+]*a[bt+]*")
_SHOWN = 40

_MOVES_REFS = frozenset({"commit", "push", "merge", "rebase", "cherry-pick", "revert", "am", "update-ref", "fetch"})
_READS = {
    "tag": frozenset({"-l", "--list", "-n", "--contains", "--points-at", "--sort", "--merged", "-v"}),
    "branch": frozenset({"-a", "-r", "-l", "-v", "-vv", "--list", "--all", "--show-current", "--contains", "--merged"}),
    "stash": frozenset({"list", "show"}),
}
"""Of subcommands that write or read: what makes them read. `git tag` and `git branch` alone read, too."""


class Hints(NamedTuple):
    """What one task's text tells."""

    doubts: tuple[str, ...] = ()
    """Why running it again may change something."""
    moves_refs: str = ""
    """The git command in it that moves HEAD or refs, which is an external effect; empty where there is none."""


def hints_of(definition: TaskDef, source: str = "") -> Hints:
    """What speaks against running the task twice; `source` is that of its Python function, where it is known."""
    if definition.kind == "shell":
        return _of_commands(definition.run)
    try:
        tree = ast.parse(textwrap.dedent(source))
    except (SyntaxError, ValueError):  # half of a statement, as that of a lambda in the middle of a call
        return Hints()
    files = (_appended_file(node) for node in ast.walk(tree) if isinstance(node, ast.Call))
    return Hints(tuple(dict.fromkeys(f"opens {file} for appending" for file in files if file)))


def hint_line(definition: TaskDef, hints: Hints) -> str:
    """One line for people; empty where there is nothing to say, or where the task says it itself.

    A task with external effects that does not call itself idempotent is not repeated without being asked for.
    """
    found = list(hints.doubts)
    if hints.moves_refs and not definition.external:
        found.append(f"`{hints.moves_refs}` is an external effect, which it does not declare")
    if not found or (definition.external and definition.idempotent == "no"):
        return ""
    what = "is declared idempotent, but" if definition.idempotent == "yes" else "may not be safe to run twice:"
    return f"task {definition.id!r} {what} it {' and it '.join(found)}".replace("it `git", "`git")


def retry_line(definition: TaskDef) -> str:
    """One line where a failed attempt is repeated although its effect must not be; else empty."""
    if not definition.external or definition.idempotent != "no" or not definition.retry.retries:
        return ""
    return (
        f"task {definition.id!r} has external effects and retries, and is not declared idempotent: an attempt that "
        "fails is repeated, whatever it did before it failed (`idempotent: true` or `keyed` says that this is safe)"
    )


# --- shell ---------------------------------------------------------------------------------------------------------


_ShellCommand = tuple[Sequence[str], Sequence[tuple[str, str]]]
"""Its words, and its redirections: operator and target."""


def _of_commands(run: str | tuple[str, ...]) -> Hints:
    if isinstance(run, str) and not _WORTH_READING.search(run):
        return Hints()
    commands: Iterable[_ShellCommand] = [(run, ())] if isinstance(run, tuple) else _commands(run)
    doubts: dict[str, None] = {}
    moves_refs = ""
    # What the script itself begins anew may be appended to: the second run begins it anew as well.
    fresh = {f"${name}" for name in _MKTEMP.findall(run)} if isinstance(run, str) else set()
    for words, redirections in commands:
        name, *arguments = [*dropwhile(_ASSIGNMENT.match, words)] or [""]
        targets = list(redirections)
        if name == "tee":
            operator = ">>" if {"-a", "--append"} & set(arguments) else ">"
            targets += [(operator, word) for word in arguments if not word.startswith("-")]
        if name == "rm":
            fresh |= set(arguments)
        doubts.update(dict.fromkeys(_of_targets(targets, fresh)))
        if name in _MAKES_FILES:
            varying = (word for word in arguments if _VARIES.search(word))
            doubts.update(dict.fromkeys(f"gives {_shorten(word)} another name each time" for word in varying))
        if name == "git" and not moves_refs:
            moves_refs = _ref_moving_command(arguments)
    return Hints(tuple(doubts), moves_refs)


def _of_targets(targets: Sequence[tuple[str, str]], fresh: set[str]) -> Iterator[str]:
    for operator, target in targets:
        if _UNHARMED.match(target):
            continue
        if _VARIES.search(target):
            yield f"gives {_shorten(target)} another name each time"
        elif target.startswith("/tmp/"):  # noqa: S108 - read in a script, not used here
            yield f"writes {_shorten(target)}, outside of what is captured (mktemp gives a name of its own)"
        elif operator in (">>", "&>>") and target.replace("{", "").replace("}", "") not in fresh:
            yield f"appends to {_shorten(target)}"
        fresh.add(target)


def _ref_moving_command(arguments: Sequence[str]) -> str:
    """`git commit` and the like, from the arguments of git; empty for what only reads."""
    ahead = iter(arguments)
    for word in ahead:
        if word in ("-C", "-c"):
            next(ahead, None)
        elif not word.startswith("-"):
            rest = list(ahead)
            reads = _READS.get(word)
            # `--sort=…` is `--sort`. Without arguments only `git stash` does something.
            only_reads = reads is None or (
                bool(reads & {one.partition("=")[0] for one in rest}) or (not rest and word != "stash")
            )
            return f"git {word}" if word in _MOVES_REFS or not only_reads else ""
    return ""


def _shorten(word: str) -> str:
    return word if len(word) <= _SHOWN else f"{word[:_SHOWN]}…"


def _commands(script: str) -> Iterator[_ShellCommand]:
    """The commands of a script, roughly: quotes taken off, comments and here-documents left out."""
    words: list[str] = []
    redirections: list[tuple[str, str]] = []
    operator = ""
    for is_word, text in _tokens(script):
        if is_word and operator:
            redirections.append((operator, text))
            operator = ""
        elif is_word:
            words.append(text)
        elif text[0] in _END and text not in ("&>", "&>>"):
            if words or redirections:
                yield words, redirections
            words, redirections, operator = [], [], ""
        else:
            operator = text if text in _WRITES else "<"
            if words and words[-1].isdecimal():
                words.pop()  # the number of what is redirected
    if words or redirections:
        yield words, redirections


def _tokens(script: str) -> Iterator[tuple[bool, str]]:
    at, documents = 0, list[str]()
    while at < len(script):
        if left_out := _LEFT_OUT.match(script, at):
            at = left_out.end()
        elif sign := _OPERATOR.match(script, at):
            at = sign.end()
            yield False, sign[0]
            if sign[0] in ("<<", "<<-"):
                while script[at : at + 1] in (" ", "\t"):
                    at += 1
                word, at = _word(script, at)
                documents.append(word)
            elif sign[0] == "\n":
                while documents and at < len(script):
                    line = script[at:].partition("\n")[0]
                    if line.lstrip("\t") == documents[0]:
                        del documents[0]
                    at += len(line) + 1
                documents.clear()
        else:
            word, at = _word(script, at)
            yield True, word


def _word(script: str, at: int) -> tuple[str, int]:
    """A word with its quotes taken off, and where it ends. What is substituted stays in it as it is written."""
    word = ""
    while piece := _PIECE.match(script, at):
        word, at = word + piece[piece.lastindex or 0], piece.end()
    return word, at


# --- Python --------------------------------------------------------------------------------------------------------


def _appended_file(call: ast.Call) -> str:
    """The file that a call opens for appending; empty where it does nothing of that kind."""
    is_method = isinstance(call.func, ast.Attribute) and call.func.attr == "open"
    if not is_method and not (isinstance(call.func, ast.Name) and call.func.id == "open"):
        return ""
    # `path.open("a")`, but `open("a")` is a file of that name.
    given = [*(word.value for word in call.keywords if word.arg == "mode"), *call.args[0 if is_method else 1 : 2]]
    modes = [one.value for one in given if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    if not any(_APPENDING.fullmatch(mode) for mode in modes):
        return ""
    if isinstance(call.func, ast.Name) and call.args:
        return _shorten(ast.unparse(call.args[0]))
    if isinstance(call.func, ast.Attribute) and len(call.args) < 2:
        return _shorten(ast.unparse(call.func.value))
    return "a file"
