"""A wall around a command (`sandbox: worktree`): what it may see and change is named, and nothing else is there.

By bubblewrap, on Linux. The command gets a root of its own: the system to read; its worktree, a temporary folder and
what its program keeps in the home folder to write. It has its own list of processes, which ends with it, and no
capability. The network is as before.

Landlock, the other means, takes no folder out of one that it allows, and lets everybody connect to sockets: an agent
could then ask the session bus, or docker, to act for it. So it is not used.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from agentos.exceptions import AttemptError
from agentos.tasks.attempt import AttemptSpec
from agentos.tasks.failures import plain_failure
from agentos.tasks.outcomes import AttemptFailed
from agentos.tasks.process.launch import Launch

_PLACES = ("/usr/bin", "/usr/local/bin", "/bin", "/run/current-system/sw/bin")
"""Where bubblewrap is looked for: never in a PATH that may lead into the worktree."""
_UNSHARED = ("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try")
_ALWAYS = (*_UNSHARED, "--die-with-parent", "--cap-drop", "ALL")
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/nix", "/gnu")
_BEHIND_LINKS = ("/etc/resolv.conf", "/etc/ssl/certs", "/etc/localtime")
"""Of the system, and often a link to elsewhere."""
_LOCAL = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TERM", "COLORTERM", "NO_COLOR", "CI")
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_KEPT_VARIABLES = frozenset((*_LOCAL, *_PROXIES, *_CERTIFICATES))
"""In capitals; some are also written small."""
_TRY_S = 10.0

# Bubblewrap would die of the SIGTERM that is meant for what it runs, and all of that with it, without its grace.
_UNMOVED = 'trap "" TERM; exec "$@"'
_MOVED_AGAIN = ("/usr/bin/env", "--default-signal=TERM")
_EXECUTE = ("/bin/sh", "-c", 'exec "$@"', "sandbox")


class SandboxAbility(msgspec.Struct, frozen=True, kw_only=True):
    """Whether tasks can be walled in on this machine."""

    program: str = ""
    version: str = ""
    problem: str = ""
    """Why they cannot be; empty where they can."""
    remedy: str = ""


class HomeNeeds(msgspec.Struct, frozen=True, kw_only=True):
    """What a program has outside the system and the worktree."""

    program: str = ""
    """Its path: what it was installed with may be read."""
    write: tuple[str, ...] = ()
    """Folders that it keeps; made where they are missing."""
    read: tuple[str, ...] = ()
    """What it reads, or must not change, of those and elsewhere in the home folder."""
    copies: tuple[str, ...] = ()
    """Files of the home folder that it gets a copy of: what becomes of the copy is forgotten."""
    variables: tuple[str, ...] = ()
    """Inherited variables that it needs: names, or how names begin (`CLAUDE_`)."""


NO_NEEDS = HomeNeeds()


@functools.cache
def sandbox_ability() -> SandboxAbility:
    """What this machine can do; tried out, once for each process. Blocks for some milliseconds."""
    if sys.platform != "linux":
        return SandboxAbility(problem="there is one on Linux only", remedy="Run the agent in a container or as a user.")
    program = shutil.which("bwrap", path=os.pathsep.join(_PLACES))
    if program is None:
        return SandboxAbility(
            problem="bubblewrap is not installed",
            remedy="Install it: apt-get install bubblewrap, dnf install bubblewrap, pacman -S bubblewrap.",
        )
    words = (program, *_ALWAYS, "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--", "/bin/sh", "-c", ":")
    try:
        told = subprocess.run((program, "--version"), capture_output=True, timeout=_TRY_S, check=True).stdout.split()
        tried = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TRY_S, check=False)
        why = tried.stderr.decode(errors="replace").strip() if tried.returncode else ""
    except (OSError, subprocess.SubprocessError) as error:
        told, why = [], str(error)
    version = told[-1].decode(errors="replace") if told else ""
    if not why:
        return SandboxAbility(program=program, version=version)
    return SandboxAbility(
        program=program,
        version=version,
        problem=f"bubblewrap cannot make one here: {why}",
        remedy="It needs unprivileged user namespaces: allow them (kernel.unprivileged_userns_clone, "
        "user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns), also for this container.",
    )


def no_sandbox_error(ability: SandboxAbility) -> AttemptError:
    """What to say of a task that asks for a sandbox where there is none."""
    return AttemptError(
        f"the task has `sandbox: worktree`, and {ability.problem}",
        next_step=f"{ability.remedy} Or take `sandbox` away: then it runs without. `agentos doctor` tells more.",
    )


def enclose(launch: Launch, spec: AttemptSpec, folder: Path, needs: HomeNeeds = NO_NEEDS) -> Launch:
    """The same command behind the wall that its task asks for; unchanged where it asks for none.

    `folder` is the private one of the attempt. AttemptFailed where there can be no wall: then nothing is started.
    """
    if not spec.definition.sandbox:
        return launch
    ability = sandbox_ability()
    if ability.problem:
        raise AttemptFailed(plain_failure(no_sandbox_error(ability)), retryable=False)
    if spec.sandbox.untrusted:
        raise _refusal(spec.sandbox.untrusted)
    env = _kept_variables(launch.env, spec, needs)
    mounts = _mounts(launch, spec, folder, needs).options()
    options = (*_ALWAYS, *mounts, "--remount-ro", "/", "--chdir", str(launch.cwd))
    unmoved, moved = (("/bin/sh", "-c", _UNMOVED, "sandbox"), _MOVED_AGAIN) if _resets_signals() else ((), ())
    argv = (*unmoved, ability.program, *options, "--", *moved, *_EXECUTE, *launch.argv)
    return msgspec.structs.replace(launch, argv=argv, env={**env, "TMPDIR": "/tmp"}, enclosed=True)


@functools.cache
def _resets_signals() -> bool:
    """Whether `env` knows the option (GNU does). Without it a command is killed where it would have been terminated."""
    try:
        tried = subprocess.run((*_MOVED_AGAIN, "/bin/sh", "-c", ":"), capture_output=True, timeout=_TRY_S, check=False)
    except (OSError, subprocess.SubprocessError):
        return False
    return tried.returncode == 0


def _refusal(why: str) -> AttemptFailed:
    error = AttemptError(f"there can be no sandbox for it: {why}", next_step="Nothing was started.")
    return AttemptFailed(plain_failure(error), retryable=False)


# --- variables ----------------------------------------------------------------------------------------------------


def _kept_variables(env: Mapping[str, str], spec: AttemptSpec, needs: HomeNeeds) -> dict[str, str]:
    """Those that AgentOS, the workflow or the agent's adapter gave, and of the inherited ones a few that are known.

    They are dropped before bubblewrap starts: what is inside can read its environment.
    """
    named = (*spec.env, *spec.sandbox.paths.env)
    begins = ("LC_", *(name for name in needs.variables if name.endswith("_")))
    return {
        name: value
        for name, value in env.items()
        if os.environ.get(name) != value
        or name.upper() in _KEPT_VARIABLES
        or name in named
        or name in needs.variables
        or name.startswith(begins)
    }


# --- files --------------------------------------------------------------------------------------------------------


class _Mounts:
    """By path, what is there. A deeper path is mounted after, and so upon, the one it lies in."""

    def __init__(self, writable: Sequence[str]) -> None:
        self._made: dict[str, tuple[str, ...]] = {"/dev": ("--dev", "/dev"), "/proc": ("--proc", "/proc")}
        self._writable = writable

    def options(self) -> Iterator[str]:
        for path in sorted(self._made, key=lambda path: path.count("/")):
            yield from self._made[path]
            if self._made[path][0] == "--tmpfs":
                yield from ("--remount-ro", path)

    def link(self, path: str) -> None:
        self._made[path] = ("--symlink", os.readlink(path), path)

    def bind(self, path: str, *, writable: bool = False, source: str = "") -> None:
        """Show what is there, or `source`, if it exists; not a link in what earlier attempts could write."""
        source, path = source or path, os.path.normpath(path)
        around = next((one for one in self._writable if path != one and Path(path).is_relative_to(one)), None)
        if around is not None and (
            writable or os.path.realpath(path) != os.path.join(os.path.realpath(around), os.path.relpath(path, around))
        ):
            return
        if os.path.exists(source):
            self._made[path] = ("--bind" if writable else "--ro-bind", source, path)

    def hide(self, path: str) -> None:
        """Have nothing there, if it would be seen. The folders it lies in cannot be moved away with it, either."""
        path = os.path.normpath(path)
        around = [one for one in self._made if Path(path).is_relative_to(one)]
        nearest = max(around, key=len, default="")
        if not around or self._made[nearest][1:] != (nearest, nearest) or not os.path.lexists(path):
            return
        if os.path.realpath(path) != path:
            raise _refusal(f"{path} is, or lies behind, a link, which it could replace")
        for folder in map(str, Path(path).parents):
            if len(folder) > len(nearest):
                self._made[folder] = (self._made[nearest][0], folder, folder)
        self._made[path] = ("--tmpfs", path) if os.path.isdir(path) else ("--ro-bind", "/dev/null", path)


def _mounts(launch: Launch, spec: AttemptSpec, folder: Path, needs: HomeNeeds) -> _Mounts:
    worktree = spec.worktree or spec.root
    home = Path(launch.env.get("HOME") or os.path.expanduser("~"))
    _refuse_impossible(launch, spec, worktree, home)
    read, write = (_named_paths(paths, home) for paths in (spec.sandbox.paths.read, spec.sandbox.paths.write))
    for path in (*needs.write, *needs.read):
        _refuse_wide(path, home, f"{path}, where the agent keeps its sessions,")
    for path in needs.write:
        os.makedirs(path, mode=0o700, exist_ok=True)
    mounts = _Mounts(writable := (str(worktree), *needs.write, *write))
    for path in _SYSTEM:
        if os.path.islink(path):
            mounts.link(path)
        else:
            mounts.bind(path)
    for path in map(os.path.realpath, _BEHIND_LINKS):
        if not path.startswith(tuple(f"{one}/" for one in _SYSTEM)):
            mounts.bind(path)
    if os.geteuid() == 0:
        for entry in os.scandir("/proc"):  # switches of the kernel, which are root's in every namespace
            if not entry.name.isdigit() and not entry.is_symlink():
                mounts.bind(entry.path)
    for name, place in (("tmp", "/tmp"), ("tmp", "/var/tmp"), ("home", str(home))):
        (folder / name).mkdir(mode=0o700, exist_ok=True)
        mounts.bind(place, writable=True, source=str(folder / name))
    for name in needs.copies:
        with suppress(OSError):
            shutil.copyfile(home / name, folder / "home" / name)
    for path in (*_programs(launch.env, needs.program, (home, worktree)), *needs.read, *read):
        mounts.bind(path)
    for path in (str(folder), *writable):
        mounts.bind(path, writable=True)
    for path in sorted((*_private_to_us("/etc"), *_kept_from_tasks(spec, worktree)), key=len):
        mounts.hide(path)
    return mounts


def _named_paths(paths: Iterable[str], home: Path) -> list[str]:
    """Of the settings."""
    whole = [os.path.normpath(home / path[2:] if path.startswith("~/") else path) for path in paths]
    for path in whole:
        _refuse_wide(path, home, f"{path}, named by [sandbox] in the settings,")
    return whole


def _refuse_impossible(launch: Launch, spec: AttemptSpec, worktree: Path, home: Path) -> None:
    if home.resolve().is_relative_to(worktree):
        raise _refusal(f"your home folder {home} is the worktree, or in it")
    if not launch.cwd.resolve().is_relative_to(worktree):
        raise _refusal(f"it works in {launch.cwd}, which is outside the worktree {worktree}")
    if str(worktree) in spec.sandbox.hidden:
        raise _refusal(f"the database lies among the files of the worktree {worktree}; give it a folder of its own")


def _refuse_wide(path: str, home: Path, what: str) -> None:
    if home.resolve().is_relative_to(os.path.realpath(path)):
        raise _refusal(f"{what} is, or holds, your whole home folder {home}")


def _programs(env: Mapping[str, str], program: str, around: Sequence[Path]) -> Iterator[str]:
    """What must be readable to start programs: folders of PATH, and what an agent was installed with."""
    home, worktree = around
    found = [path for path in env.get("PATH", os.defpath).split(os.pathsep) if os.path.isabs(path)]
    if program:
        places = [os.path.realpath(program), program]
        while os.path.islink(places[-1]):  # a folder on the way may be a link: each name it has must lead somewhere
            link = os.path.join(os.path.dirname(places[-1]), os.readlink(places[-1]))
            places.append(os.path.normpath(link))
        for place in places:
            before, package, _ = place.partition("/node_modules/")
            found.append(before + package.rstrip("/") if package else os.path.dirname(place))
    for path in found:
        whole = os.path.realpath(path)
        there = any(Path(whole).is_relative_to(one) for one in (worktree, *_SYSTEM))
        if not there and not any(one.resolve().is_relative_to(whole) for one in (home, worktree)):
            yield path
    for path in filter(None, (program, os.path.realpath(program) if program else "")):
        if not Path(path).is_relative_to(worktree):
            yield path


def _private_to_us(folder: str, depth: int = 2) -> Iterator[str]:
    """What this user may read there, and others may not: host keys and passwords, mostly, if we are root."""
    with suppress(OSError):
        for entry in os.scandir(folder):
            if entry.is_symlink():
                continue
            if not entry.stat().st_mode & 0o004 and os.access(entry.path, os.R_OK):
                yield entry.path
            elif depth > 1 and entry.is_dir():
                yield from _private_to_us(entry.path, depth - 1)


def _kept_from_tasks(spec: AttemptSpec, worktree: Path) -> Iterator[str]:
    """What belongs to git, to AgentOS, or to another worktree."""
    yield from spec.sandbox.hidden
    for root in {worktree, spec.root}:
        yield from (str(root / ".agentos"), str(root / ".git"))
        with suppress(OSError, UnicodeDecodeError):
            yield from _of_repository(root, worktree)


def _of_repository(root: Path, worktree: Path) -> Iterator[str]:
    """The folder of the repository, and its other worktrees."""
    git = root / ".git"
    if git.is_file():
        git = root / git.read_text().removeprefix("gitdir:").strip()
        with suppress(FileNotFoundError):
            git = git / (git / "commondir").read_text().strip()
    git = git.resolve()
    yield str(git)
    for linked in (git / "worktrees").glob("*/gitdir"):
        other = (linked.parent / linked.read_text().strip()).parent
        if other.resolve() != worktree.resolve():
            yield str(other)
