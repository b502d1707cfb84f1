"""A task with `sandbox: worktree` that tries to get out: what holds, and what does not, which docs/security.md says.

Each escape is a program that runs behind the wall. It prints ESCAPED where it got what it must not have.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import chdir, closing
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import psutil
import pytest

from agentos.exceptions import RunRefusedError, UntrustedSettingsError
from agentos.machine.inputs import AttemptResult
from agentos.tasks.attempt import AttemptSpec
from agentos.tasks.process import sandbox
from agentos.tasks.process.orphans import attempt_processes, end_attempt
from agentos.tasks.process.sandbox import SandboxAbility, sandbox_ability
from agentos.tasks.process.sandbox_settings import SandboxPaths, SandboxSettings
from agentos.workflow.place.settings import SETTINGS
from tests.agents.programs import FOLDER
from tests.agents.script import WriteFile
from tests.agents.support import REAL, agent_spec, scripted
from tests.agents.test_command import shaped_like_codex
from tests.cli.conftest import SOURCES, Agentos
from tests.conftest import git, trust
from tests.models.replies import says
from tests.unit.tasks.support import RecordingHost, cancel_when, output_of, perform, shell_spec, soon

pytestmark = [
    pytest.mark.attack,
    pytest.mark.skipif(bool(sandbox_ability().problem), reason=f"no sandbox here: {sandbox_ability().problem}"),
]

KEY = "-----KEY OF THE USER-----"
PYTHON = os.path.realpath(sys.executable)
READABLE = SandboxSettings(paths=SandboxPaths(read=(sys.base_prefix,)))
PRELUDE = """
import ctypes, glob, os, socket, struct, subprocess, sys
home, key, outside, driver = os.environ["HOME"], os.environ["THE_KEY"], os.environ["OUTSIDE"], int(os.environ["DRIVER"])
libc = ctypes.CDLL(None, use_errno=True)
def escaped(*what): print("ESCAPED", *what)
def has_key(path):
    if key in open(path, errors="replace").read(): escaped(path)
def new_user_namespace():
    uid = os.getuid()
    if libc.unshare(0x10000000 | 0x00020000) != 0: raise OSError(ctypes.get_errno(), "unshare")
    open("/proc/self/setgroups", "w").write("deny"); open("/proc/self/uid_map", "w").write(f"0 {uid} 1")
"""


class Target(NamedTuple):
    """What there is to get: a repository, a home with keys, files beside them, a stranger's process."""

    root: Path
    home: Path
    outside: Path
    stranger: int
    env: dict[str, str]


@pytest.fixture
def target(tmp_git_repo: Path, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Target]:
    outside = tmp_path / "outside"
    for place in (home / ".ssh/id_ed25519", home / ".aws/credentials", outside / "secret"):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(KEY)
    git("config", "the.key", KEY, cwd=tmp_git_repo)
    (tmp_git_repo / ".agentos").mkdir(mode=0o700)
    (tmp_git_repo / ".agentos/issue_workflow.db").write_text(KEY)
    (tmp_git_repo / "link").symlink_to(home / ".ssh/id_ed25519")
    (tmp_git_repo / "folder-link").symlink_to(outside)
    for name in ("AWS_SECRET_ACCESS_KEY", "SSH_AUTH_SOCK", "AGENTOS_WORKFLOW_DB", "DOCKER_HOST", "DEPLOY_TOKEN"):
        monkeypatch.setenv(name, KEY)
    stranger = subprocess.Popen(["sleep", "600"], env={**os.environ, "DEPLOY_TOKEN": KEY}, cwd=outside)
    env = {"THE_KEY": KEY[3:-3], "OUTSIDE": str(outside), "DRIVER": str(stranger.pid)}
    try:
        yield Target(tmp_git_repo, home, outside, stranger.pid, env)
    finally:
        stranger.kill()
        stranger.wait()


def walled(spec: AttemptSpec, settings: SandboxSettings = READABLE) -> AttemptSpec:
    definition = msgspec.structs.replace(spec.definition, sandbox="worktree")
    return msgspec.structs.replace(spec, definition=definition, sandbox=settings)


def attacking(target: Target, code: str, **more: Any) -> AttemptSpec:
    """An agent that runs the code."""
    program = (
        f"{PRELUDE}\ntry:\n{textwrap.indent(textwrap.dedent(code), '    ')}\nexcept OSError as error: print(error)"
    )
    (target.root / "attack.py").write_text(program)
    return walled(agent_spec(target.root, "command", PYTHON, "attack.py", env=target.env, **more))


def attack(target: Target, code: str, **more: Any) -> str:
    text: str = output_of(perform(attacking(target, code, **more)))["text"]
    return text


HELD = {
    # paths
    "the ssh key": "has_key(f'{home}/.ssh/id_ed25519')",
    "cloud credentials": "has_key(f'{home}/.aws/credentials')",
    "whatever else is in the home": "[escaped(name) for name in os.listdir(home) if name in ('.ssh', '.aws')]",
    "a file beside the worktree": "has_key(f'{outside}/secret')",
    "up from the worktree": "[has_key(path) for path in glob.glob('../**/secret', recursive=True)]",
    "the repository's .git": "[has_key(path) for path in glob.glob('.git/*')]",
    "a git hook": "os.makedirs('.git/hooks', exist_ok=True); open('.git/hooks/pre-commit', 'w'); escaped()",
    "git's own settings": "subprocess.run(['git', 'config', 'core.hooksPath', '/tmp']).returncode or escaped()",
    "moving .git away": "os.rename('.git', 'git'); escaped()",
    "the journal": "has_key('.agentos/issue_workflow.db')",
    "a journal of its own": "open('.agentos/issue_workflow.db', 'w'); escaped()",
    "moving .agentos away": "os.rename('.agentos', 'elsewhere'); escaped()",
    "the system's programs": "open('/usr/bin/agentos-was-here', 'w'); escaped()",
    "the system's settings": "open('/etc/agentos-was-here', 'w'); escaped()",
    "the passwords, as root": "open('/etc/shadow').read() and escaped()",
    # links
    "a link to a key": "has_key('link')",
    "a link to a folder": "has_key('folder-link/secret')",
    "a hard link to a file outside": "os.link(f'{outside}/secret', 'hard'); has_key('hard')",
    "writing through a link": "open('folder-link/planted', 'w'); escaped()",
    # processes
    "the driver's root": "has_key(f'/proc/{driver}/root{outside}/secret')",
    "the driver's folder": "has_key(f'/proc/{driver}/cwd/secret')",
    "the root of the first process": "has_key(f'/proc/1/root{outside}/secret')",
    "the driver's environment": "has_key(f'/proc/{driver}/environ')",
    "any environment": "[has_key(path) for path in glob.glob('/proc/[0-9]*/environ') if os.access(path, os.R_OK)"
    " and b'DEPLOY_TOKEN=' in open(path, 'rb').read()]",
    "killing the driver": "os.kill(driver, 0); escaped()",
    "open files of the driver": "[escaped(os.readlink(f'/proc/self/fd/{fd}')) for fd in map(int, os.listdir("
    "'/proc/self/fd')) if fd > 2 and not os.readlink(f'/proc/self/fd/{fd}').startswith('/proc')]",
    "files that bubblewrap holds": "[has_key(path) for path in glob.glob('/proc/1/fd/*/outside/secret')]",
    # variables
    "variables with keys": "[escaped(one) for one in os.environ if one != 'THE_KEY' and key in os.environ[one]]",
    # sockets
    "the agent of ssh": "socket.socket(socket.AF_UNIX).connect(f'{home}/agent.sock'); escaped()",
    "docker, and the session's bus": "[escaped(one) for path in ('/run', '/var/run') for one in os.listdir(path)]",
    # the kernel
    "taking a mount away": "libc.umount2(b'.agentos', 2) == 0 and escaped()",
    "the same as root of a new namespace": "new_user_namespace(); libc.umount2(b'.agentos', 2) == 0 and escaped();"
    " has_key('.agentos/issue_workflow.db')",
    "a writable system in a new namespace": "new_user_namespace();"
    " libc.mount(b'none', b'/usr', None, 4096 | 32, None) == 0 and (open('/usr/bin/planted', 'w'), escaped())",
    "out of a chroot": "new_user_namespace(); os.mkdir('jail'); os.chroot('jail'); os.chdir('../' * 40);"
    " has_key('.' + outside + '/secret')",
    "a file by its handle": "new_user_namespace(); handle = struct.pack('=IiII', 8, 1, 2, 0);"
    " libc.open_by_handle_at(os.open('.', 0), handle, 0) >= 0 and escaped()",
    "more rights by a setuid program": "'NoNewPrivs:\\t1' in open('/proc/self/status').read() or escaped()",
    "capabilities": "'CapBnd:\\t0000000000000000' in open('/proc/self/status').read() or escaped()",
    "the kernel's switches": "open('/proc/sys/kernel/core_pattern', 'r+'); escaped()",
    "switches in a new namespace": "new_user_namespace(); libc.mount(b'none', b'/proc/sys', None, 4096 | 32, None);"
    " open('/proc/sys/kernel/core_pattern', 'r+'); escaped()",
    "a /proc of its own": "new_user_namespace(); libc.unshare(0x20000000); child = os.fork(); child and os.wait();"
    " child or libc.mount(b'proc', b'/tmp', b'proc', 0, None) or os.open('/tmp/sys/vm/swappiness', 1) and escaped()",
    "anything of the kernel's": "[escaped(path) for path in glob.glob('/proc/[a-z]*') + glob.glob('/proc/[a-z]*/*')"
    " if 'self' not in path and not os.path.realpath(path)[6].isdigit() and os.access(path, os.W_OK)"
    " and not os.stat(path).st_mode & 0o002]",
    "the magic key": "os.open('/proc/sysrq-trigger', os.O_WRONLY); escaped()",
    "keys into the user's terminal": "os.open('/dev/tty', os.O_RDWR); escaped()",
    "terminals and disks": "[escaped(name) for name in os.listdir('/dev') + os.listdir('/dev/pts') if name not in"
    " 'console core fd full mqueue null ptmx pts random shm stderr stdin stdout tty urandom zero'.split()]",
    "a disk of its own making": "os.mknod('disk', 0o60600, os.makedev(8, 0)); escaped()",
}


@pytest.mark.parametrize("name", HELD)
def test_the_wall_holds(target: Target, name: str) -> None:
    before = {path: path.read_bytes() for path in (target.root / ".git").rglob("*") if path.is_file()}
    with closing(socket.socket(socket.AF_UNIX)) as agent:
        with chdir(target.home):  # the name of a socket is short
            agent.bind("agent.sock")
        agent.listen()
        said = attack(target, HELD[name])

    assert "ESCAPED" not in said, said
    assert {path: path.read_bytes() for path in (target.root / ".git").rglob("*") if path.is_file()} == before
    assert (target.root / ".agentos/issue_workflow.db").read_text() == KEY
    assert sorted(os.listdir(target.outside)) == ["secret"]


NOT_HELD = {
    "servers on this machine": "socket.create_connection(('127.0.0.1', int(os.environ['PORT']))); escaped()",
    "sockets without a file": "socket.socket(socket.AF_UNIX).connect(chr(0) + os.environ['NAME']); escaped()",
    "code that you run later": "open('Makefile', 'w').write('all:; cat ~/.ssh/id_ed25519'); escaped()",
    "a repository inside": "subprocess.run(['git', 'init', '-q', 'inside'], check=True);"
    " open('inside/.git/hooks/post-checkout', 'w'); escaped()",
}


@pytest.mark.parametrize("name", NOT_HELD)
def test_the_wall_does_not_hold(target: Target, name: str) -> None:
    """Said so in docs/security.md: if one of these holds one day, that page has to say so."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server, closing(socket.socket(socket.AF_UNIX)) as abstract:
        abstract.bind(f"\0agentos-{os.getpid()}")
        abstract.listen()
        env = {**target.env, "PORT": str(server.getsockname()[1]), "NAME": f"agentos-{os.getpid()}"}
        assert "ESCAPED" in attack(target._replace(env=env), NOT_HELD[name])


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="numbers of system calls")
def test_keys_that_the_kernel_keeps_for_the_session_are_readable(target: Target) -> None:
    """Said so in docs/security.md."""
    libc = ctypes.CDLL(None)
    if libc.syscall(250, 1, None, 0, 0, 0) < 0 or (key := libc.syscall(248, b"user", b"agentos", b"key", 3, -3)) < 0:
        pytest.skip("this kernel keeps no keys")
    text = ctypes.create_string_buffer(9)
    assert libc.syscall(250, 11, key, text, 9, 0) == 3
    said = attack(target, f"libc.syscall(250, 11, {key}, ctypes.create_string_buffer(9), 9, 0) == 3 and escaped()")
    assert "ESCAPED" in said


def test_memory_that_others_share_is_not_there(target: Target) -> None:
    libc = ctypes.CDLL(None)
    segment = libc.shmget(0x5EC2E7, 4096, 0o1600)
    assert segment >= 0
    try:
        assert "ESCAPED" not in attack(target, "libc.shmget(0x5EC2E7, 4096, 0) >= 0 and escaped()")
    finally:
        libc.shmctl(segment, 0, None)


# --- what it may do -------------------------------------------------------------------------------------------------


def test_it_reads_the_system_and_writes_its_worktree_and_a_temporary_folder(target: Target) -> None:
    code = """
    open("made", "w").write("by it")
    for place in ("/tmp", os.environ["TMPDIR"], home, "/dev/shm"): open(f"{place}/x", "w").write("gone soon")
    print(sys.stdin.read(), os.getcwd(), os.environ["AGENTOS_ATTEMPT_ID"], os.path.exists("/etc/passwd"))
    """
    spec = attacking(target, code, prompt="Hello.")
    assert output_of(perform(spec))["text"] == f"Hello. {target.root} {spec.attempt_id} True"
    assert (target.root / "made").read_text() == "by it"
    assert not os.path.exists("/tmp/x")
    assert not (target.home / "x").exists()


def test_the_settings_name_more_to_read_to_write_and_to_inherit(target: Target) -> None:
    (target.home / "cache").mkdir()
    paths = SandboxPaths(read=(sys.base_prefix, str(target.outside)), write=("~/cache",), env=("DEPLOY_TOKEN",))
    code = """
    has_key(f"{outside}/secret"); has_key("/proc/self/environ"); open(f"{home}/cache/x", "w")
    open(f"{outside}/planted", "w").write("no")
    """
    spec = msgspec.structs.replace(attacking(target, code), sandbox=SandboxSettings(paths=paths))
    said = output_of(perform(spec))["text"]
    assert said.count("ESCAPED") == 2
    assert "Read-only file system" in said
    assert (target.home / "cache/x").exists()


@pytest.mark.parametrize("named", ["/", "~/", "~/../"])
def test_no_setting_opens_the_whole_home(target: Target, named: str) -> None:
    spec = msgspec.structs.replace(
        attacking(target, "pass"), sandbox=SandboxSettings(paths=SandboxPaths(read=(named,)))
    )
    outcome = perform(spec)
    assert outcome.error is not None
    assert "whole home" in outcome.error.text
    assert not outcome.retryable


def test_a_readable_folder_around_the_repository_shows_neither_git_nor_journal(target: Target) -> None:
    paths = SandboxPaths(read=(sys.base_prefix, str(target.root.parent)))
    spec = attacking(target, "[has_key(one) for one in ('.git/config', '.agentos/issue_workflow.db')]")
    assert (
        "ESCAPED" not in output_of(perform(msgspec.structs.replace(spec, sandbox=SandboxSettings(paths=paths))))["text"]
    )


def test_what_verify_runs_is_behind_the_wall_as_well(target: Target) -> None:
    outcome = perform(attacking(target, "pass", verify=f"! cat {target.home}/.ssh/id_ed25519"))
    assert KEY not in str(output_of(outcome)["verify"])


def test_a_shell_task_can_have_a_wall(target: Target) -> None:
    done = perform(walled(shell_spec("cat ~/.ssh/id_ed25519 || echo 'answer=42' > $AGENTOS_OUTPUT", root=target.root)))
    assert output_of(done)["values"] == {"answer": "42"}


# --- worktrees ------------------------------------------------------------------------------------------------------


def test_the_git_file_of_a_linked_worktree_cannot_be_read_or_replaced(target: Target, tmp_path: Path) -> None:
    worktree = tmp_path / "linked"
    git("worktree", "add", "-q", "-b", "other", str(worktree), cwd=target.root)
    code = 'for work in (\'os.unlink(".git")\', \'os.rename("x", ".git")\', \'print(open(".git").read())\'):\n'
    code += "    open('x', 'w')\n    try: exec(work); escaped()\n    except OSError as error: print(error)"
    said = attack(target._replace(root=worktree.resolve()), code)
    assert "ESCAPED" not in said
    assert git("status", "--porcelain", "attack.py", cwd=worktree) == "?? attack.py"


def test_another_worktree_inside_is_not_there_and_cannot_be_moved(target: Target) -> None:
    git("worktree", "add", "-q", "-b", "other", str(target.root / "trees/deep/b"), cwd=target.root)
    (target.root / "trees/deep/b/notes").write_text(KEY)
    said = attack(target, "print(os.listdir('trees/deep/b')); os.rename('trees', 'moved'); escaped()")
    assert said.startswith("[]")
    assert "ESCAPED" not in said


@pytest.mark.parametrize("name", [".git", ".agentos"])
def test_a_link_where_something_is_to_be_hidden_is_refused(target: Target, tmp_path: Path, name: str) -> None:
    (target.root / name).rename(tmp_path / "real")
    (target.root / name).symlink_to(tmp_path / "real")
    outcome = perform(attacking(target, "escaped()"))
    assert outcome.error is not None
    assert "is a link" in outcome.error.text or "behind, a link" in outcome.error.text


def test_a_database_among_the_files_of_the_worktree_is_refused_and_one_in_a_folder_hidden(target: Target) -> None:
    (target.root / "state/deep").mkdir(parents=True)
    (target.root / "state/deep/a.db").write_text(KEY)
    spec = attacking(target, "has_key('state/deep/a.db'); os.rename('state', 'moved'); escaped()")
    hidden = msgspec.structs.replace(READABLE, hidden=(str(target.root / "state/deep"),))
    assert "ESCAPED" not in output_of(perform(msgspec.structs.replace(spec, sandbox=hidden)))["text"]

    hidden = msgspec.structs.replace(READABLE, hidden=(str(target.root),))
    outcome = perform(msgspec.structs.replace(spec, sandbox=hidden))
    assert outcome.error is not None
    assert "folder of its own" in outcome.error.text


# --- what an agent keeps ----------------------------------------------------------------------------------------------


def called_claude(target: Target, code: str) -> AttemptSpec:
    """A program of that name that runs the code, with claude's folder and variables."""
    attacking(target, code)
    programs = target.root.parent / "programs"
    programs.mkdir(exist_ok=True)
    program = programs / "claude"
    (programs / "package.json").write_text('{"bin": {}, "version": "0.1"}')
    program.write_text(f"#!/bin/sh\nexec {PYTHON} {target.root}/attack.py\n")
    program.chmod(0o755)
    env = {**target.env, "PATH": f"{programs}:/usr/bin:/bin"}
    return walled(agent_spec(target.root, "claude", env=env))


def heard(target: Target, code: str) -> list[str]:
    """What the code printed, each line of which is no event of claude's."""
    host, spec = RecordingHost(), called_claude(target, f"sys.stdout = sys.stderr\n{textwrap.dedent(code)}")
    perform(spec, host)
    return host.lines("stderr")


def test_an_agent_that_is_installed_behind_a_link_is_found(target: Target) -> None:
    """As version managers of node have it: the folder of PATH lies behind a link to the version in use."""
    installed = target.root.parent / "installed"
    package = installed / "lib/node_modules/claude"
    package.mkdir(parents=True)
    (installed / "bin").mkdir()
    (installed.parent / "in-use").symlink_to("installed")
    (package / "package.json").write_text('{"bin": {}, "version": "0.1"}')
    (package / "cli.sh").write_text('#!/bin/sh\ncat "$(dirname "$(realpath "$0")")/package.json" >&2\n')
    (package / "cli.sh").chmod(0o755)
    (installed / "bin/claude").symlink_to("../lib/node_modules/claude/cli.sh")
    host, env = RecordingHost(), {**target.env, "PATH": f"{installed.parent}/in-use/bin:/usr/bin:/bin"}
    perform(walled(agent_spec(target.root, "claude", env=env)), host)
    assert host.lines("stderr") == ['{"bin": {}, "version": "0.1"}']


def test_an_agent_writes_its_sessions_and_not_its_settings(target: Target) -> None:
    (target.home / ".claude").mkdir()
    (target.home / ".claude/settings.json").write_text("{}")
    (target.home / ".claude.json").write_text("{}")
    said = heard(
        target,
        """
        os.makedirs(f"{home}/.claude/projects/p"); open(f"{home}/.claude/projects/p/session.jsonl", "w").write("{}")
        open(f"{home}/.claude.json", "w").write("changed")
        for work in ("open(f'{home}/.claude/settings.json', 'w')", "os.unlink(f'{home}/.claude/settings.json')"):
            try: exec(work); escaped()
            except OSError as error: print(error)
        """,
    )
    assert len(said) == 2
    assert not any("ESCAPED" in line for line in said)
    assert (target.home / ".claude/projects/p/session.jsonl").exists()
    assert (target.home / ".claude.json").read_text() == "{}"


def test_a_link_among_its_sessions_leads_nowhere_in_the_next_attempt(target: Target) -> None:
    heard(target, "os.symlink(f'{home}/.ssh/id_ed25519', f'{home}/.claude/settings.json')")
    assert (target.home / ".claude/settings.json").is_symlink()
    said = heard(target, "print('at work'); has_key(f'{home}/.claude/settings.json')")
    assert said[0] == "at work"
    assert not any("ESCAPED" in line for line in said)


def test_an_agent_can_plant_settings_where_it_had_none(target: Target) -> None:
    """Said so in docs/security.md."""
    heard(target, "open(f'{home}/.claude/settings.json', 'w').write('{}')")
    assert (target.home / ".claude/settings.json").read_text() == "{}"


def test_a_link_in_place_of_the_prompt_is_not_written_through(target: Target) -> None:
    """A session that is lost is tried anew, and the prompt written again: by us, outside the wall."""
    victim = target.outside / "secret"
    heard(
        target,
        f"""
        folder = os.path.dirname(os.path.realpath("/proc/self/fd/0"))
        os.unlink(f"{{folder}}/prompt"); os.symlink({str(victim)!r}, f"{{folder}}/prompt")
        print("No conversation found with session ID"); sys.exit(1)
        """,
    )
    assert victim.read_text() == KEY


@pytest.mark.parametrize("permissions", ["read", "edit"])
def test_an_agent_whose_own_sandbox_does_not_work_inside_is_refused(target: Target, permissions: str) -> None:
    env = {**target.env, "PATH": shaped_like_codex(target.outside, {}, lasts_s=0)}
    outcome = perform(walled(agent_spec(target.root, "codex", env=env, permissions=permissions)))
    assert outcome.error is not None
    assert "permissions: full" in outcome.error.text
    assert not outcome.retryable


# --- its end ------------------------------------------------------------------------------------------------------


def test_exit_codes_and_signals_come_through(target: Target) -> None:
    def ending(script: str) -> AttemptResult:
        return perform(walled(shell_spec(script, root=target.root)))

    plain, killed, missing = (
        ending("exit 7"),
        ending("kill -KILL $$"),
        perform(walled(shell_spec(("no-such-program",), root=target.root, env={"PATH": "/usr/bin"}))),
    )
    assert plain.error is not None
    assert "exit code 7" in plain.error.text
    assert not plain.cut_off
    assert killed.error is not None
    assert "SIGKILL" in killed.error.text
    assert killed.cut_off
    assert missing.error is not None
    assert "command not found" in missing.error.text


def test_a_timeout_lets_it_clean_up_and_ends_all_of_it(target: Target) -> None:
    script = "trap 'sleep 0.3; echo cleaned > cleaned; exit 0' TERM; setsid sh -c 'env -i sleep 600' & sleep 600 & wait"
    spec = walled(shell_spec(script, root=target.root, timeout_s=1.5))
    outcome = perform(spec)
    assert outcome.cut_off
    assert (target.root / "cleaned").read_text() == "cleaned\n"
    assert not [one for one in attempt_processes() if one.attempt_id == spec.attempt_id]


def test_what_it_leaves_behind_ends_with_it(target: Target) -> None:
    marked = f"left-{os.getpid()}"
    daemon = f"bash -c 'exec -a {marked} sleep 600' >/dev/null 2>&1 &"
    waiting = f"until [ $(pgrep -cf {marked}) -ge 3 ]; do :; done"
    output_of(perform(walled(shell_spec(f"setsid {daemon} setsid env -i {daemon} {waiting}", root=target.root))))
    asyncio.run(soon(lambda: not left_with(marked)))


def left_with(name: str) -> list[int]:
    return [one.pid for one in psutil.process_iter(["cmdline"]) if (one.info["cmdline"] or [""])[0] == name]


def test_a_later_driver_finds_its_processes_and_ends_them(target: Target) -> None:
    spec = walled(shell_spec("env -i setsid sleep 600.25 & wait", root=target.root))

    def at_work() -> bool:
        if ["sleep", "600.25"] not in (one.info["cmdline"] for one in psutil.process_iter(["cmdline"])):
            return False
        mine = [one for one in attempt_processes() if one.attempt_id == spec.attempt_id]
        assert {"bwrap", "bash"} <= {one.command for one in mine}
        ended = end_attempt(spec.mark)
        assert all(one.ended for one in ended)
        assert "sleep" in {one.command for one in ended}
        return True

    async def watch() -> AttemptResult:
        attempt = asyncio.create_task(asyncio.to_thread(perform, spec))
        await soon(at_work)
        return await attempt

    assert asyncio.run(watch()).cut_off


def test_a_killed_driver_takes_all_of_it_along(target: Target, agentos: Agentos) -> None:
    (target.root / "flow.yaml").write_text(
        "name: f\ntasks:\n  a: {run: 'env -i setsid sleep 611 & echo up > up; wait', sandbox: worktree}\n"
    )
    for path in (target.root / ".agentos").iterdir():
        path.unlink()
    env = {name: value for name, value in os.environ.items() if name != "AGENTOS_WORKFLOW_DB"}
    driver = subprocess.Popen(
        [sys.executable, "-m", "agentos", "run", "flow.yaml"],
        cwd=target.root,
        env={**env, "PYTHONPATH": os.pathsep.join([str(SOURCES), *sys.path])},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def sleepers() -> list[int]:
        return [one.pid for one in psutil.process_iter(["cmdline"]) if one.info["cmdline"] == ["sleep", "611"]]

    try:
        asyncio.run(soon(lambda: (target.root / "up").exists() and bool(sleepers())))
    finally:
        driver.send_signal(signal.SIGKILL)
        driver.wait()
    asyncio.run(soon(lambda: not sleepers()))


def test_a_cancelled_attempt_ends_all_of_it(target: Target) -> None:
    spec = walled(shell_spec("sleep 600 & echo up > up; wait", root=target.root))
    outcome = asyncio.run(cancel_when(spec, RecordingHost(), (target.root / "up").exists))
    assert outcome.cancelled
    assert not [one for one in attempt_processes() if one.attempt_id == spec.attempt_id]


# --- no wall ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def no_wall(monkeypatch: pytest.MonkeyPatch) -> None:
    none = SandboxAbility(problem="bubblewrap is not installed", remedy="Install it: apt-get install bubblewrap.")
    monkeypatch.setattr(sandbox, "sandbox_ability", lambda: none)


@pytest.mark.usefixtures("no_wall")
def test_where_there_is_no_wall_nothing_is_started(target: Target) -> None:
    outcome = perform(walled(shell_spec("echo ran > ran", root=target.root)))
    assert outcome.error is not None
    assert "bubblewrap is not installed" in outcome.error.text
    assert not outcome.retryable
    assert not (target.root / "ran").exists()


@pytest.mark.usefixtures("no_wall")
def test_where_there_is_no_wall_no_run_is_begun(tmp_git_repo: Path) -> None:
    from agentos import Workflow, run

    flow = Workflow("w")
    flow.add("a", "shell", run="echo ran > ran", sandbox="worktree")
    with pytest.raises(RunRefusedError, match=r"bubblewrap is not installed") as refused:
        run(flow, repo=tmp_git_repo)
    assert "apt-get install bubblewrap" in refused.value.next_step
    assert not (tmp_git_repo / "ran").exists()


def test_a_bubblewrap_in_the_worktree_is_not_asked(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = target.root / "bwrap"
    planted.write_text("#!/bin/sh\necho planted > planted\n")
    planted.chmod(0o755)
    monkeypatch.setenv("PATH", f"{target.root}:{os.environ['PATH']}")
    sandbox_ability.cache_clear()
    output_of(perform(walled(shell_spec("true", root=target.root))))
    assert not (target.root / "planted").exists()


def test_a_repository_opens_no_wall_before_it_is_trusted(tmp_git_repo: Path, home: Path) -> None:
    from agentos import Workflow, run

    (home / "named").write_text(KEY)
    (tmp_git_repo / SETTINGS).write_text('[sandbox]\nread = ["~/named"]\n')
    flow = Workflow("w")
    flow.add("a", "shell", run="cat ~/named", sandbox="worktree")
    with pytest.raises(UntrustedSettingsError, match="sandbox = "):
        run(flow, repo=tmp_git_repo)
    trust(tmp_git_repo)
    assert run(flow, repo=tmp_git_repo).outputs["a"]["stdout"] == KEY


def test_an_isolated_task_behind_a_wall_sees_its_own_worktree_only(tmp_git_repo: Path) -> None:
    from agentos import Workflow, run

    flow = Workflow("w")
    look = f"ls {tmp_git_repo}/.git {tmp_git_repo}/README || echo made > made; cat README; git status || true"
    flow.add("a", "shell", run=look, sandbox="worktree", isolation="worktree")
    assert "a repository to test in" in run(flow, repo=tmp_git_repo).outputs["a"]["stdout"]
    assert (tmp_git_repo / "made").read_text() == "made\n"


# --- the real ones ----------------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("agent", REAL)
def test_a_real_agent_works_behind_the_wall_and_goes_on_in_its_session(agent: str, target: Target) -> None:
    new, permissions = target.root / "new.txt", "full" if agent == "codex" else "edit"
    with scripted(agent, target.home, WriteFile(str(new), "hello"), says("Done."), says("Done again.")) as model:
        # With full permissions codex builds no sandbox of its own, and needs no PATH that hides bubblewrap.
        host, env = RecordingHost(), {**model.env, "PATH": f"{FOLDER}{os.pathsep}{os.environ['PATH']}"}
        first = perform(walled(agent_spec(target.root, agent, env=env, permissions=permissions)), host)
        assert output_of(first)["text"] == "Done."
        again = agent_spec(target.root, agent, env=env, session=host.sessions[-1], permissions=permissions)
        second = perform(walled(again), RecordingHost())

    assert output_of(second)["text"] == "Done again."
    assert not second.warnings
    assert new.read_text() == "hello"
    assert (target.root / ".agentos/issue_workflow.db").read_text() == KEY
