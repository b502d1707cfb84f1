"""Every command against every kind of bad input: one clear message, the right exit code, and nothing changed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from agentos.cli.json_shapes import commands
from tests.cli.conftest import Agentos
from tests.cli.hostile import (
    BROKEN_DATABASES,
    COMMANDS,
    CUT,
    EXPORTED,
    FILE,
    GATE,
    LINES,
    NO_PLACES,
    PYTHON_FILES,
    RUN,
    SNAP,
    TASK,
    TEXTS,
    YAML_FILES,
    changed,
    filled,
    fingerprint,
    make_place,
    tell_tale,
)
from tests.forks import CLOSED_PIPE
from tests.marks import quick_first

NOWHERE = "annot determine checkpoint database location"


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """No test leaves anything behind in it."""
    return tmp_path_factory.mktemp("hostile").resolve() / "repo"


@pytest.fixture(scope="module")
def good(repo: Path) -> dict[str, str]:
    """What makes each command line a sound one."""
    return make_place(repo)


@pytest.fixture(autouse=True)
def _made(good: dict[str, str]) -> None:
    """The place is there in every test."""


def expect(ended: tuple[int, str, str], code: int, said: str, about: object) -> None:
    """One message on stderr that says what is wrong and what to do; nothing on stdout; this exit code."""
    found, out, err = ended
    assert not tell_tale(err), (about, tell_tale(err), err[-500:])
    assert found == code, (about, found, err[:500])
    assert out == "", (about, out[:200])
    assert said in err, (about, err[:500])
    assert len(err.splitlines()) >= 2, (about, err[:500])  # what, and the next step


def test_every_command_is_tried() -> None:
    # A group that does something by itself is typed like any other.
    idle = {
        name for name, command in commands() if isinstance(command, click.Group) and not command.invoke_without_command
    }
    names = {name for name, _ in commands()} - idle
    assert names == set(COMMANDS)
    assert {line.words[: len(name.split())] == tuple(name.split()) for name, line in LINES} == {True}


def test_help_has_an_example_and_a_wrong_option_is_told(agentos: Agentos, repo: Path) -> None:
    for name in COMMANDS:
        code, out, err = agentos(*name.split(), "--help", cwd=repo)
        assert (code, err) == (0, ""), name
        assert "Examples:\n    " in out, name
        assert f"agentos {name}" in out, name
        expect(agentos(*name.split(), "--nosuch", cwd=repo), 2, "--nosuch", name)


@pytest.mark.full
def test_a_real_process_says_the_same_as_a_fork(
    agentos: Agentos, new_agentos: Agentos, repo: Path, good: dict[str, str]
) -> None:
    """What makes the rest of this file worth something: for each command once, both ways."""
    for name, lines in COMMANDS.items():
        words = [word if word not in good else "nosuch" for word in lines[0].words]
        words = [*words, "--nosuch"] if words == list(lines[0].words) else words
        real = new_agentos(*words, cwd=repo)
        assert real == agentos(*words, cwd=repo), name


# --- ids and names --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", quick_first(TEXTS))
def test_texts_that_name_nothing(agentos: Agentos, repo: Path, good: dict[str, str], kind: str) -> None:
    before = fingerprint(repo)
    for name, line in LINES:
        for place in (RUN, CUT, SNAP, TASK, GATE, FILE, EXPORTED):
            if place not in line.words or "--params" in line.words:
                continue
            words = filled(line, {**good, place: TEXTS[kind]})
            if kind.startswith("like"):  # after `--` nothing is an option
                words = [words[0], *[word for word in words[1:] if word.startswith("-") and word != TEXTS[kind]]]
                words += ["--", *[good.get(word, word) for word in line.words[1:] if not word.startswith("-")]]
                words = [TEXTS[kind] if word == good[place] else word for word in words]
                if {"-o", "--id", "--rerun", "--static", "--worktree"} & set(words):
                    continue  # their values are not arguments
            code, out, err = agentos(*words, cwd=repo)
            if name == "check":  # problems are what it prints
                assert (code, err) == (2, "1 problem in 1 of 1 file; nothing was run.\n")
                assert not tell_tale(out[:4_000])
                continue
            if name == "import" and kind in ("very long", "wide"):
                assert (code, "File name too long" in err, tell_tale(err)) == (1, True, [])
                continue
            expect((code, out, err), 2, "", (kind, *words))
    assert fingerprint(repo) == before


def test_the_beginning_of_several_ids(agentos: Agentos, repo: Path, good: dict[str, str]) -> None:
    before = fingerprint(repo)
    for name, line in LINES:
        if RUN in line.words and name != "graph":
            expect(agentos(*filled(line, {**good, RUN: "end"}), cwd=repo), 2, "ended, ended-too", line.words)
    assert fingerprint(repo) == before


@pytest.mark.parametrize("kind", quick_first(["empty", "very long", "wide", "not UTF-8", "like an option"]))
def test_ids_that_no_run_can_have(agentos: Agentos, repo: Path, good: dict[str, str], kind: str) -> None:
    before = fingerprint(repo)
    for words in (["run", "tidy.yaml"], ["fork", good[CUT]], ["import", "run.jsonl"]):
        expect(agentos(*words, "--id", TEXTS[kind], cwd=repo), 2, "no run can have the id", (kind, words))
    assert fingerprint(repo) == before


def test_values_that_are_none(agentos: Agentos, repo: Path) -> None:
    before = fingerprint(repo)
    for words in (
        ["list", "--limit", "many"],
        ["list", "--limit", "-1"],
        ["list", "--status", "happy"],
        ["events", "ended", "--after", "-1"],
        ["events", "ended", "--type", "\x1b[2J"],
        ["logs", "ended", "--tail", "9" * 5_000],
        ["prune", "ended", "--keep", "0"],
        ["purge", "..", "--yes"],
        ["purge", "\x1b[2J", "--yes"],
        ["purge", "a" * 5_000, "--yes"],
        ["purge", "\udcff", "--yes"],
        ["purge", "made.txt"],
        ["resume", "ended", "--files", "maybe"],
        ["resume", "ended", "--files", "keep", "--restore-files"],
        ["run", "tidy.yaml", "--max-concurrency", "0"],
        ["run", "tidy.yaml", "--quiet", "--json"],
        ["run", "tidy.yaml", "-p", "depth"],
        ["run", "tidy.yaml", "-p", "nosuch=1"],
        ["approve", "waits", "--output", "{"],
        ["approve", "waits", "--output", "\udcff"],
        ["approve", "waits", "--output", "[" * 50_000],
        ["send", "waits", "modify_args", "task_id=ship", "updates=" + "[" * 50_000],
        ["send", "waits", "no_such_command"],
        ["send", "waits", "skip_layer", "layer=first"],
        ["send", "waits", "skip_layer", "nosuch=1"],
        ["send", "waits", "skip_layer", "layer"],
        ["send", "waits", "{" * 50_000],
        ["send", "waits", '{"type": "skip_layer", "layer": ' + "[" * 50_000],
        ["send", "waits", '{"type": 7}'],
        ["send", "waits", '{"type": "inject_tasks", "tasks": [{"id": "a\\u001b"}]}'],
        ["issue"],
        ["issue", "--brief"],
        ["issue", "--brief", "tidy.yaml", "--all"],
        ["issue", "--brief", ".", "--dry-run"],
        ["issue", "--brief", "/dev/zero"],
        ["issue", "--brief", "tidy.yaml", "--drafter", "claude"],
        ["issue", "--brief", "tidy.yaml", "--drafter", "command:'"],
        ["issue", "--brief", "tidy.yaml", "--reviewer", "\x1b[2J:x"],
        ["issue", "--brief", "tidy.yaml", "--file-with", "post"],
        ["issue", "--brief", "tidy.yaml", "--gates", "draft,none"],
        ["issue", "--brief", "tidy.yaml", "--max-rounds", "0"],
        ["issue", "--brief", "tidy.yaml", "--budget", "0"],
        ["issue", "--brief", "tidy.yaml", "--as-begun", "--anew"],
        ["issue", "--resume", "nosuch"],
        ["issue", "--resume"],
        ["issue", "--all", "--parallel", "0"],
        ["schema", "\u202enosuch"],
        ["completion", "tcsh"],
        ["init", "../outside"],
        ["init", "a" * 300],
        ["nosuch"],
        ["-\x1b"],
    ):
        code, out, err = agentos(*words, cwd=repo)
        assert (code in (1, 2), out, tell_tale(err)) == (True, "", []), (words, code, err[:500])
    assert fingerprint(repo) == before


# --- files ----------------------------------------------------------------------------------------------------------


def files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Every file that is none."""
    yield "missing", folder / "missing.yaml"
    for end, contents in ((".yaml", YAML_FILES), (".py", PYTHON_FILES)):
        for number, (kind, content) in enumerate(contents.items()):
            path = folder / f"bad{number}{end}"
            path.write_bytes(content)
            yield kind, path
    (folder / "folder.yaml").mkdir()
    (folder / "folder.py").mkdir()
    os.mkfifo(folder / "pipe.yaml")
    os.mkfifo(folder / "pipe.py")
    (folder / "loop.yaml").symlink_to("loop.yaml")
    (folder / "plain.txt").write_text("hello")
    (folder / "two\nlines.yaml").write_text("[")
    for name in ("folder.yaml", "folder.py", "pipe.yaml", "pipe.py", "loop.yaml", "plain.txt", "two\nlines.yaml"):
        yield name, folder / name
    yield "a device", Path("/dev/zero")
    yield "a name too long", folder / f"{'x' * 300}.yaml"


@pytest.mark.full
def test_files_that_are_no_workflows(agentos: Agentos, repo: Path, tmp_path: Path) -> None:
    before = fingerprint(repo)
    for kind, path in files(tmp_path):
        code, out, err = agentos("check", path, cwd=repo)
        assert (code, tell_tale(err), tell_tale(out)) == (2, [], []), (kind, code, out[:500], err[:500])
        for words in ("graph", "graph --format text", "run --json"):
            expect(agentos(*words.split(), path, cwd=repo), 2, "", (kind, words))
    assert fingerprint(repo) == before
    assert not (repo / "owned").exists()


def test_files_that_hold_no_parameters(agentos: Agentos, repo: Path, tmp_path: Path) -> None:
    before = fingerprint(repo)
    broken = [path for kind, path in files(tmp_path) if path.suffix == ".yaml" or kind == "a device"]
    (tmp_path / "deep.json").write_bytes(b"[" * 100_000)
    (tmp_path / "list.json").write_bytes(b"[]")
    for path in (*broken, tmp_path / "deep.json", tmp_path / "list.json"):
        expect(agentos("run", "tidy.yaml", "--params", path, cwd=repo), 2, "", path.name)
    assert fingerprint(repo) == before


def test_files_that_hold_no_run(agentos: Agentos, repo: Path, tmp_path: Path) -> None:
    before = fingerprint(repo)
    whole = (repo / "run.jsonl").read_bytes()
    lines = whole.splitlines(keepends=True)
    changed_files = {
        "cut short": whole[:-200],
        "a line left out": b"".join(lines[:3] + lines[4:]),
        "a line twice": b"".join([*lines[:3], lines[2], *lines[3:]]),
        "another order": b"".join([lines[0], *reversed(lines[1:])]),
        "one byte changed": whole.replace(b"one", b"onf", 1),
        "more behind it": whole + b'{"more": 1}\n',
        "one endless line": b'{"agentos": "' + b"a" * 5_000_000,
        "deep": b"[" * 200_000,
    }
    for kind, content in changed_files.items():
        (tmp_path / "changed.jsonl").write_bytes(content)
        code, out, err = agentos("import", tmp_path / "changed.jsonl", "--id", "copy", cwd=repo)
        assert (code in (2, 6), out, tell_tale(err)) == (True, "", []), (kind, code, out, err[:500])
        code, out, err = agentos("import", "-", "--id", "copy", cwd=repo, input=content)
        assert (code in (2, 6), out, tell_tale(err)) == (True, "", []), (kind, code, out, err[:500])
    for kind, path in files(tmp_path):
        code, out, err = agentos("import", path, cwd=repo)
        assert (code in (1, 2, 6), out, tell_tale(err)) == (True, "", []), (kind, code, out, err[:500])
    assert fingerprint(repo) == before


# --- places ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", quick_first(BROKEN_DATABASES))
def test_a_database_that_cannot_be_used(agentos: Agentos, repo: Path, good: dict[str, str], kind: str) -> None:
    change, expected, said = BROKEN_DATABASES[kind]
    with changed(repo, change):
        before = fingerprint(repo)
        for name, line in LINES:
            if not line.opens:
                continue
            ended = agentos(*filled(line, good), cwd=repo)
            if name == "doctor":  # what it finds is what it prints
                assert (ended[0], said in ended[1], tell_tale(ended[2])) == (expected, True, []), ended
            else:
                code = line.nowhere if expected == 1 else expected
                expect(ended, code, said, (kind, *line.words))
            assert fingerprint(repo) == before, line.words


@pytest.mark.parametrize("kind", quick_first(NO_PLACES))
def test_a_place_that_cannot_be_used(agentos: Agentos, repo: Path, good: dict[str, str], kind: str) -> None:
    with changed(repo, NO_PLACES[kind]):
        before = fingerprint(repo)
        for name, line in LINES:
            if not line.locates:
                continue
            code, out, err = agentos(*filled(line, good), cwd=repo)
            if name == "doctor":
                assert (code, NOWHERE in out, tell_tale(err)) == (1, True, []), (kind, out, err)
            else:
                expect((code, out, err), line.nowhere, NOWHERE, (kind, *line.words))
        assert fingerprint(repo) == before


@pytest.mark.full
def test_a_named_repository_that_is_none(agentos: Agentos, repo: Path, good: dict[str, str], tmp_path: Path) -> None:
    for there in (tmp_path / "none", repo / "README.md", Path("/dev/null"), tmp_path / ("x" * 300), tmp_path):
        for name, line in LINES:
            if line.locates and not {"--all"} & set(line.words):
                code, out, err = agentos(*filled(line, good), "--repo", there, cwd=repo)
                assert (NOWHERE in out + err, tell_tale(err)) == (True, []), (there, name, err)
                assert code == line.nowhere or name == "graph", (there, name, code)


# --- readers that have gone, disks that are full ---------------------------------------------------------------------


SILENT = ("demo", "approve", "reject", "abort", "pause", "send", "worker install")
"""Their stdout says nothing, or their exit code is not 0."""
READING = [(name, line) for name, line in LINES if name not in SILENT]


@pytest.mark.full
def test_a_reader_that_has_enough_is_no_error(agentos: Agentos, repo: Path, good: dict[str, str]) -> None:
    for name, line in READING:
        with changed(repo, lambda root: None):
            code, _, err = agentos(*filled(line, good), cwd=repo, stdout=CLOSED_PIPE)
            assert (code, tell_tale(err)) == (0, []), (name, line.words, code, err[:500])


@pytest.mark.full
def test_a_full_disk_behind_stdout_is_told(agentos: Agentos, repo: Path, good: dict[str, str]) -> None:
    for name, line in READING:
        with changed(repo, lambda root: None):
            code, _, err = agentos(*filled(line, good), cwd=repo, stdout="/dev/full")
            assert not tell_tale(err), (name, err)
            assert code in (0, 1), (name, code)  # a run goes on without its view, and says how it ended on stderr
            assert code == 0 or "No space left on device" in err, (name, err)


@pytest.mark.full
def test_no_room_for_another_byte(agentos: Agentos, repo: Path, good: dict[str, str]) -> None:
    """No file may grow, as on a full disk: each command that writes says so, and what was there stays sound."""
    for name in (
        "init",
        "run",
        "resume",
        "fork",
        "restore",
        "undo",
        "purge",
        "approve",
        "reject",
        "pause",
        "abort",
        "send",
        "delete",
        "export",
        "import",
    ):
        for line in COMMANDS[name]:
            if "--list" in line.words:
                continue  # it writes nothing
            words = filled(line, {**good, RUN: "waits"})
            with changed(repo, lambda root: None):
                code, out, err = agentos(*words, cwd=repo, file_limit=1)
                assert not tell_tale(err), (words, err)
                assert (code in (0, 1, 2, 75, 3), out) == (True, ""), (words, code, out, err)
                code, out, err = agentos("doctor", "--deep", cwd=repo)
                assert code == 0, (words, out, err)
                assert agentos("show", "ended", cwd=repo)[0] == 0
