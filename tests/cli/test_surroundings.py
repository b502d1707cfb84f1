"""The program in odd surroundings: closed streams, narrow encodings, no home, no git, signals, leases, disks."""

from __future__ import annotations

import asyncio
import functools
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.cli.conftest import SOURCES, Agentos
from tests.cli.hostile import COMMANDS, filled, fingerprint, make_place, tell_tale
from tests.cli.runs import driven
from tests.workflow.support import soon

pytestmark = pytest.mark.full  # each is every command in one more odd place

PROGRAM = [sys.executable, "-m", "agentos"]


def environment(**extra: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(SOURCES), **extra}


def in_shell(words: str, *arguments: str | Path, cwd: Path, env: dict[str, str] | None = None) -> tuple[int, str, str]:
    """`"$@"` in the words is the program with these arguments."""
    done = subprocess.run(
        ["bash", "-c", words, "bash", *PROGRAM, *map(str, arguments)],
        cwd=cwd,
        env=env or environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    return tmp_path / "repo"


@pytest.fixture
def good(repo: Path) -> dict[str, str]:
    return make_place(repo)


# --- streams --------------------------------------------------------------------------------------------------------


def test_streams_that_are_closed(good: dict[str, str], repo: Path) -> None:
    """What is printed goes nowhere, and never into a file that was opened meanwhile."""
    for name, [line, *_] in COMMANDS.items():
        if name == "demo":
            continue
        code, _, err = in_shell('"$@" <&- >&-', *filled(line, good), cwd=repo)
        assert (code in (0, 2), tell_tale(err)) == (True, []), (name, code, err)
    for words in ("import -", "send waits -", "export ended-too -o -", "run tidy.yaml --json"):
        code, _, _ = in_shell('"$@" <&- >&- 2>&-', *words.split(), cwd=repo)
        assert code in (0, 2), words
    assert in_shell('"$@"', "doctor", "--deep", cwd=repo)[0] == 0


ODD_ENCODINGS = (
    {"LC_ALL": "C"},
    {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    {"PYTHONIOENCODING": "latin-1"},
    {"PYTHONIOENCODING": "ascii:strict"},
)


@pytest.mark.parametrize("odd", ODD_ENCODINGS, ids=lambda odd: " ".join(f"{key}={value}" for key, value in odd.items()))
def test_characters_that_are_not_there(agentos: Agentos, repo: Path, good: dict[str, str], odd: dict[str, str]) -> None:
    (repo / "wide.yaml").write_text(
        'name: "grün 🙂"\ntasks: {"prüfen→🙂": {run: [echo, ok], effects: none, approve: "wirklich – 🙂?"}}\n',
        encoding="utf-8",
    )
    ended = agentos("run", "wide.yaml", "--id", "n🙂", cwd=repo)
    assert ended.code == 3, ended.err
    for words in (
        ["check", "wide.yaml"],
        ["graph", "wide.yaml", "--format", "text"],
        ["list"],
        ["inbox"],
        ["show", "n"],
        ["events", "n"],
        ["db", "stats"],
        ["show", "n", "--json"],
        ["run", "wide.yaml", "--gates", "stop"],
    ):
        done = agentos(*words, cwd=repo, env=odd)
        assert (done.code in (0, 3), "Traceback" in done.err) == (True, False), (words, done.err[-500:])
        assert done.out, words
    done = agentos("show", "nö🙂", cwd=repo, env=odd)
    assert (done.code, "Traceback" in done.err) == (2, False)


def test_a_home_that_is_none(good: dict[str, str], repo: Path) -> None:
    for odd in ({}, {"HOME": "/dev/null"}, {"HOME": "relative"}, {"HOME": ""}, {"HOME": "/nonexistent/\n\udcff"}):
        bare = {key: value for key, value in environment().items() if key not in ("HOME", "XDG_STATE_HOME", "TERM")}
        for words in (["run", "tidy.yaml"], ["list", "--all"], ["doctor"]):
            code, _, err = in_shell('"$@"', *words, cwd=repo, env={**bare, **odd})
            assert (code, tell_tale(err)) == (0, []), (odd, words, err)


def test_variables_that_are_no_text(good: dict[str, str], repo: Path) -> None:
    odd = {
        "DEPLOY_TOKEN": "\udcff" * 12,
        "SECRET\udcfe": "\udcfe\udcfd-1234567",
        "LINES_TOKEN": "one\ntwo\x1b[2J-3",
    }
    for words in (["run", "tidy.yaml"], ["list"], ["doctor"], ["show", "nosuch"]):
        code, _, err = in_shell('"$@"', *words, cwd=repo, env=environment(**odd))
        assert (code, tell_tale(err)) == (2 if "nosuch" in words else 0, []), (words, err)


def test_a_directory_that_was_deleted(tmp_path: Path) -> None:
    for words, code in ((["list"], 1), (["run", "x"], 1), (["check", "x.yaml"], 1), (["init"], 1), (["schema"], 0)):
        ended = in_shell('mkdir gone; cd gone; rmdir ../gone; "$@"', *words, cwd=tmp_path)
        assert (ended[0], tell_tale(ended[2])) == (code, []), (words, ended)
        assert code == 0 or "the current directory does not exist" in ended[2]


@pytest.mark.parametrize("name", ["with spaces  ", "two\nlines", "-rf", "tab\t\x1b[2J", "$(touch owned)'\""])
def test_repositories_with_odd_names(agentos: Agentos, tmp_path: Path, name: str) -> None:
    root = tmp_path / name
    good = make_place(root)
    for name_, [line, *_] in COMMANDS.items():
        if name_ in ("demo", "delete", "worker install"):
            continue
        code, out, err = agentos(*filled(line, good), cwd=root)
        expected = (0, 2) if name_ in ("approve", "reject", "pause", "abort", "send") else (0,)  # the run has ended
        if name_ == "prove" and "\n" in name:
            expected = (1,)  # git's configuration cannot name such a path
        assert (code in expected, tell_tale(err), tell_tale(out[:3_000])) == (True, [], []), (name_, code, out, err)
    assert not (tmp_path / "owned").exists()


def test_paths_that_are_no_text(agentos: Agentos, good: dict[str, str], repo: Path, tmp_path: Path) -> None:
    odd = tmp_path / "not-\udcff-text"
    shutil.copytree(repo, odd)
    before = fingerprint(odd)
    state = {"XDG_STATE_HOME": str(tmp_path / "none")}
    for name, [line, *_] in COMMANDS.items():
        if line.locates and name not in ("init", "doctor", "db path", "db stats", "db migrate", "db backup"):
            for code, out, err in (
                agentos(*filled(line, good), cwd=odd, env=state),
                agentos(*filled(line, good), cwd=repo, env={**state, "AGENTOS_WORKFLOW_DB": str(odd / "x.db")}),
            ):
                assert (code, "is not UTF-8" in out + err, tell_tale(err)) == (1, True, []), (name, code, out, err)
    for words in (["doctor"], ["db", "path"], ["db", "stats"], ["db", "migrate"]):
        code, out, err = agentos(*words, cwd=odd, env=state)
        assert (code in (0, 1), tell_tale(err + out)) == (True, []), (words, out, err)
    assert fingerprint(odd) == before


# --- git ------------------------------------------------------------------------------------------------------------


OLD_GIT = '#!/bin/sh\nif [ "$1" = --version ]; then echo git version 1.7.1; exit; fi\nfor word; do echo "$word"; done\n'
SICK_GIT = "#!/bin/sh\nprintf '\\033[2Jfatal: bad object \\377\\n' >&2\nexit 128\n"


@pytest.mark.parametrize(
    "script", [None, OLD_GIT, SICK_GIT, "#!/no/such/interpreter\n"], ids=["no", "old", "sick", "broken"]
)
def test_git_that_cannot_be_asked(
    agentos: Agentos, good: dict[str, str], repo: Path, tmp_path: Path, script: str | None
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    if script is not None:
        (tools / "git").write_text(script)
        (tools / "git").chmod(0o755)
    before = fingerprint(repo)
    odd = {"PATH": str(tools), "XDG_STATE_HOME": str(tmp_path / "none")}
    for name, [line, *_] in COMMANDS.items():
        if not line.locates:
            continue
        code, out, err = agentos(*filled(line, good), cwd=repo, env=odd)
        assert (code, tell_tale(err), tell_tale(out)) == (1, [], []), (name, code, out, err)
        assert "Cannot determine checkpoint database location" in out + err, (name, err)
        assert "git" in out + err
    assert fingerprint(repo) == before


# --- two at once, and signals ---------------------------------------------------------------------------------------


def test_a_run_that_somebody_else_drives(agentos: Agentos, good: dict[str, str], repo: Path) -> None:
    with driven(repo):
        for words in (
            ["resume", "busy", "--as-stored"],
            ["delete", "busy", "--yes"],
            ["resume", "busy", "--as-stored", "--json"],
        ):
            code, out, err = agentos(*words, cwd=repo)
            assert (code, out, tell_tale(err)) == (75, "", []), (words, code, err)
        looking = "show busy, events busy, logs busy, why busy long, checkpoints busy, prune busy, export busy -o -"
        for typed in f"{looking}, db migrate, list, doctor".split(", "):
            code, _, err = agentos(*typed.split(), cwd=repo)
            assert (code, tell_tale(err)) == (0, []), (typed, code, err)


def test_ctrl_c_while_following(good: dict[str, str], repo: Path) -> None:
    with driven(repo):
        for words in (
            ["watch", "busy"],
            ["events", "busy", "-f"],
            ["logs", "busy", "-f"],
            ["events", "busy", "-f", "--json"],
        ):
            process = subprocess.Popen([*PROGRAM, *words], cwd=repo, env=environment(), stdout=-1, stderr=-1, text=True)
            if words[0] != "logs":  # which has nothing to print yet
                assert process.stdout is not None
                process.stdout.readline()
            else:
                asyncio.run(soon(functools.partial(_reads, process.pid)))
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=30)
            assert (process.returncode, tell_tale(err)) == (130, []), (words, err)


def _reads(pid: int) -> bool:
    """Whether the process has the database open."""
    folder = Path(f"/proc/{pid}/fd")
    for link in list(folder.iterdir()):
        with suppress(FileNotFoundError):  # closed meanwhile
            if "issue_workflow.db" in os.readlink(link):
                return True
    return False


SLOW = "import pathlib, time\npathlib.Path('begun').touch()\ntime.sleep(60)\n"
SLEEPER = "name: sleeper\ntasks: {nap: {run: 'touch begun; exec sleep 60', effects: none}}\n"


def test_ctrl_c_while_a_file_is_imported_and_while_a_task_runs(repo: Path, good: dict[str, str]) -> None:
    (repo / "slow.py").write_text(SLOW)
    (repo / "sleeper.yaml").write_text(SLEEPER)
    for words, times in ((["check", "slow.py"], 1), (["graph", "slow.py"], 1), (["run", "slow.py"], 1),
                         (["run", "sleeper.yaml", "--id", "nap"], 2), (["resume", "nap"], 2)):  # fmt: skip
        (repo / "begun").unlink(missing_ok=True)
        process = subprocess.Popen([*PROGRAM, *words], cwd=repo, env=environment(), stdout=-1, stderr=-1, text=True)
        asyncio.run(soon((repo / "begun").exists))
        process.send_signal(signal.SIGINT)
        if times == 2:
            assert process.stderr is not None
            assert "Ctrl-C again" in process.stderr.readline()
            process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
        assert (process.returncode, tell_tale(err)) == (130, []), (words, err)
    assert in_shell('"$@"', "show", "nap", "--json", cwd=repo)[0] == 0


# --- disks ----------------------------------------------------------------------------------------------------------


WRITING = (
    "init",
    "run",
    "resume",
    "fork",
    "approve",
    "reject",
    "pause",
    "abort",
    "send",
    "prune",
    "delete",
    "export",
    "import",
)


@pytest.mark.skipif(not shutil.which("unshare") or os.geteuid() != 0, reason="mounting needs root")
@pytest.mark.parametrize(("how", "expected"), [("read-only", "ead-only"), ("full", "full|No space")])
def test_a_disk_that_takes_nothing(repo: Path, good: dict[str, str], tmp_path: Path, how: str, expected: str) -> None:
    """Each command that writes says so; nothing is lost, and what can be read is read."""
    lines = [["list"], ["show", "ended"], ["check", "tidy.yaml"], ["doctor"]]
    lines += [filled(COMMANDS[name][0], good) for name in WRITING]
    lines[lines.index(["approve", "ended", "--no-resume"])] = ["approve", "waits", "--no-resume"]
    (tmp_path / "lines").write_text("\n".join("\t".join(line) for line in lines))
    mount = {
        "read-only": f"mount --bind {repo} {repo} && mount -o remount,ro,bind {repo} || exit 99",
        "full": f"""cp -a {repo} {repo}.kept && mount -t tmpfs -o size=2m tmpfs {repo} || exit 99
            cp -a {repo}.kept/. {repo}/ && cat /dev/zero > {repo}/filling 2>/dev/null""",
    }[how]
    script = f"""
        {mount}
        cd {repo}
        while IFS=$'\\t' read -r -a words; do
            "$@" "${{words[@]}}" > {tmp_path}/out 2> {tmp_path}/err < /dev/null
            echo "=== $? ${{words[*]}}"; cat {tmp_path}/err
        done < <(cat {tmp_path}/lines; echo)
        rm -f filling
        "$@" export ended -o - > /dev/null && "$@" export waits -o - > /dev/null; echo "=== $? last"
    """
    code, out, err = in_shell(f'unshare -m bash -c {_quoted(script)} bash "$@"', cwd=repo)
    if code == 99:
        pytest.skip("this machine lets nobody mount")
    told = _parts(out)
    assert len(told) == len(lines) + 1, (out, err)
    for words, (status, message) in told.items():
        assert tell_tale(message) == [], (words, message)
        if words.split()[0] in ("list", "show", "check", "last"):
            assert status == 0, (words, message)
        elif words.split()[0] in WRITING:
            refused = status in (1, 75) and any(word in message for word in expected.split("|"))
            assert refused or status in (0, 2), (words, status, message)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _parts(out: str) -> dict[str, tuple[int, str]]:
    """What was typed, with how it ended and what it said."""
    found = {}
    for part in out.split("=== ")[1:]:
        head, _, message = part.partition("\n")
        status, _, words = head.partition(" ")
        found[words] = (int(status), message)
    return found


def test_a_late_ctrl_c_while_the_interpreter_ends_is_no_traceback() -> None:
    code = (
        "import atexit, os, signal, sys\n"
        "from agentos.cli.main import main\n"
        "atexit.register(os.kill, os.getpid(), signal.SIGINT)\n"
        "sys.argv = ['agentos', '--version']\n"
        "main()\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.skipif(not shutil.which("unshare") or os.geteuid() != 0, reason="mounting needs root")
@pytest.mark.parametrize("arguments", [("run", "flow.yaml"), ("doctor",), ("approve", "mine"), ("resume",)])
def test_a_system_without_proc_is_told_in_a_sentence(
    agentos: Agentos, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    (tmp_path / "flow.yaml").write_text("name: f\ntasks: {a: {run: 'true', approve: Go?, effects: none}}\n")
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    assert agentos("run", "flow.yaml", "--id", "mine", cwd=tmp_path).code == 3
    without = ["unshare", "--mount", "bash", "-c", 'mount -t tmpfs none /proc && exec "$@"', "bash"]
    done = subprocess.run(
        [*without, *PROGRAM, *arguments], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "this system does not show its processes: /proc is missing" in done.stderr
    assert "mount -t proc proc /proc" in done.stderr
    assert "Traceback" not in done.stderr
