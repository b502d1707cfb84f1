"""Signed answers: who may sign, as a commit of the repository says, and signatures made and verified by ssh-keygen.

The file `.agentos-signers` counts as it is in the commit that a run began at, whatever the worktree has: nothing that a
task writes makes anybody a signer.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import msgspec
from msgspec.structs import replace

from agentos.dag.plan.findings import format_names
from agentos.exceptions import AgentosError, CommandRefusedError, RunRefusedError, WorkflowConfigurationError
from agentos.ids import GateId, short_id
from agentos.machine.commands import ApprovalResponse, CommandRequest, SignedAnswer
from agentos.machine.events import DecisionMade, Event, Signers
from agentos.machine.facts.facts import Facts
from agentos.machine.signed_text import NAMESPACE, is_about, signed_text
from agentos.worktree import git

FILE = ".agentos-signers"
MOST_SIGNERS = 64 * 1024
"""Bytes of that file: it is kept with the run."""
TIMEOUT_S = 30.0
"""For a verification; somebody who signs may take as long as they like."""

NO_SSH_KEYGEN = "ssh-keygen is not installed here, or not on PATH"

_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_FOUND = re.compile(rb"100(?:644|755) blob ([0-9a-f]+)\t")
_GOOD = re.compile(r" with \S+ key (SHA256:\S+)$", re.MULTILINE)
_PUBLIC = re.compile(r"(?:ssh-|ecdsa-|sk-)\S+ [A-Za-z0-9+/=]+")
_OWN_KEYS = ("id_ed25519_sk", "id_ecdsa_sk", "id_ed25519", "id_ecdsa", "id_rsa")


# --- who may sign -------------------------------------------------------------------------------------------------


def present_signers(asking: Sequence[str], root: Path) -> Signers:
    """Who may sign answers of a run that begins now, and has these tasks that take signed ones.

    RunRefusedError, with what to do, where the commit that is checked out names nobody.
    """
    try:
        if shutil.which("ssh-keygen") is None:
            raise CommandRefusedError(NO_SSH_KEYGEN)
        commit = _git_line(root, "rev-parse", "--verify", "--quiet", "HEAD^{commit}", failing="there is no commit yet")
        return Signers(commit=commit, text=read_signers(root, commit))
    except AgentosError as error:
        raise RunRefusedError(
            f"{format_names(asking)} takes a signed answer, and nobody could sign it: {error.message}",
            next_step=f"Nothing was run. Put `NAME KEY` lines into {FILE} at the root of the repository "
            f"(ssh-keygen's allowed_signers form) and commit it: `git add {FILE} && git commit`.",
        ) from error


def read_signers(root: Path, commit: str) -> str:
    """The file as the commit has it. WorkflowConfigurationError where it is not there, or cannot be read here."""
    if not _COMMIT.fullmatch(commit):
        raise WorkflowConfigurationError(f"{commit[:80]!r} is no commit")
    missing = f"commit {commit[:12]} is not in the repository at {git.one_line(root)}"
    _git_line(root, "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}", failing=missing)
    found = _FOUND.match(_git(root, "ls-tree", "-z", "--full-tree", commit, "--", FILE, failing=missing))
    if found is None:
        raise WorkflowConfigurationError(f"commit {commit[:12]} has no file {FILE}")
    body = _git(root, "cat-file", "blob", found[1].decode(), failing=f"{FILE} of commit {commit[:12]} is not there")
    if len(body) > MOST_SIGNERS:
        raise WorkflowConfigurationError(f"{FILE} of commit {commit[:12]} has more than {MOST_SIGNERS} bytes")
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise WorkflowConfigurationError(f"{FILE} of commit {commit[:12]} is no text: {error}") from error
    if not any(_PUBLIC.search(line) for line in text.splitlines() if not line.lstrip().startswith("#")):
        raise WorkflowConfigurationError(f"{FILE} of commit {commit[:12]} names nobody")
    return text


def _git(root: Path, *argv: str, failing: str) -> bytes:
    # A `git replace` in the repository would give another file for the same commit.
    done = git.run(root, "--no-replace-objects", *argv)
    if done.returncode != 0:
        said = os.fsdecode(done.stderr).strip()
        raise WorkflowConfigurationError(f"{failing}{f' ({said})' if said else ''}")
    return done.stdout


def _git_line(root: Path, *argv: str, failing: str) -> str:
    return os.fsdecode(_git(root, *argv, failing=failing)).strip()


# --- verifying ----------------------------------------------------------------------------------------------------


def with_signature_checked(asked: CommandRequest, facts: Facts, root: Path | None) -> CommandRequest:
    """An answer with what came of verifying its signature: by whom it is, or why it does not count. Blocks.

    `root` is the worktree of the run; None where it is not here. What becomes of the answer the machine says.
    """
    command = asked.command
    gate = facts.gates.get(GateId(command.gate_id)) if isinstance(command, ApprovalResponse) else None
    if gate is None or not isinstance(command, ApprovalResponse) or gate.opened.by != "signed":
        return asked
    try:
        signers = _confirmed_signers(facts, root)
        return replace(asked, signed=verify(signed_text(facts, command), command.signature, signers))
    except (AgentosError, OSError) as error:
        return replace(asked, unsigned=error.message if isinstance(error, AgentosError) else str(error))


def refuse_forged(facts: Facts, events: Iterable[Event], root: Path) -> None:
    """RunRefusedError where the journal has a yes that had to be signed, and was not. Verifies every signature anew.

    The journal is a database that other programs can write to, and tasks run on the strength of what it says.
    """
    made = {event.gate_id: event for event in events if isinstance(event, DecisionMade) and event.answer == "approved"}
    for gate_id, gate in facts.gates.items():
        if gate.opened.by != "signed" or gate.answer != "approved":
            continue
        try:
            if gate.signed is None:
                raise CommandRefusedError("it has no signature")
            said = ApprovalResponse(gate_id=gate_id, approved=True, choice=gate.choice, reason=gate.reason)
            if not is_about(gate.signed.text, facts, said):
                raise CommandRefusedError("its signature is of another answer, or of another gate or run")
            signers = _confirmed_signers(facts, root)
            found = verify(gate.signed.text, gate.signed.signature, signers, at=made[gate_id].at)
            if str(found) != gate.author:
                raise CommandRefusedError(f"it is by {found}")
        except (AgentosError, OSError) as error:
            why = error.message if isinstance(error, AgentosError) else str(error)
            run = shlex.quote(short_id(facts.workflow_id))
            raise RunRefusedError(
                f"the journal says that {gate_id} was approved by {gate.author}, and that does not hold: {why}",
                next_step="Nothing was run. Begin a new run, or fork a checkpoint from before that answer: "
                f"agentos checkpoints {run}",
            ) from error


def _confirmed_signers(facts: Facts, root: Path | None) -> str:
    """Who may sign, as the journal and the repository both say."""
    if facts.signers is None:
        raise CommandRefusedError("the run began without signers")
    if root is None:
        raise CommandRefusedError(f"the repository of the run, whose {FILE} counts, is not on this host")
    if read_signers(root, facts.signers.commit) != facts.signers.text:
        raise CommandRefusedError(f"{FILE} of commit {facts.signers.commit[:12]} is not what it was at the start")
    return facts.signers.text


def verify(text: str, signature: str, signers: str, *, at: datetime | None = None) -> SignedAnswer:
    """Whose signature of the text it is, among the signers as of now, or `at` a time. CommandRefusedError: nobody's."""
    # In local time, as ssh-keygen has it: before OpenSSH 9.1 it knows no other.
    then = () if at is None else (f"-Overify-time={at.astimezone():%Y%m%d%H%M%S}",)
    with _private_folder({FILE: signers, "answer.sig": signature}) as folder:
        found = _ssh_keygen(folder, "find-principals", *then, "-s", "answer.sig", "-f", FILE)
        # As far as ssh-keygen tells, one a line; before OpenSSH 8.9 with commas between them.
        named = [one for line in found.stdout.splitlines() for one in line.split(",") if one]
        if found.returncode != 0 or not named:
            raise CommandRefusedError(f"it is of nobody whom {FILE} names{'' if then else ' now'}{_ssh_error(found)}")
        said = ""
        for principal in dict.fromkeys(named):
            arguments = (*then, "-f", FILE, "-I", principal, "-n", NAMESPACE, "-s", "answer.sig")
            done = _ssh_keygen(folder, "verify", *arguments, stdin=text)
            good = _GOOD.search(done.stdout)
            if done.returncode == 0 and good is not None:
                return SignedAnswer(principal=principal, key=good[1], text=text, signature=signature)
            said = said or _ssh_error(done)
    raise CommandRefusedError(
        f"it is not over this answer to this gate, with the inputs and files as they are now{said}"
    )


def _ssh_keygen(folder: Path, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    # Names that are no UTF-8 come through, and are written out where they are shown.
    try:
        return subprocess.run(
            ["ssh-keygen", "-Y", *arguments],
            cwd=folder,
            env={name: os.environ[name] for name in ("PATH", "TZ") if name in os.environ} | {"LC_ALL": "C"},
            input=stdin,
            capture_output=True,
            encoding="utf-8",
            errors="backslashreplace",
            timeout=TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError as error:
        raise CommandRefusedError(NO_SSH_KEYGEN) from error
    except subprocess.TimeoutExpired as error:
        raise CommandRefusedError(f"ssh-keygen took more than {TIMEOUT_S:.0f} s") from error


def _ssh_error(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in done.stderr.splitlines() if line != "No principal matched."]
    return f" (ssh-keygen: {'; '.join(lines)})" if lines else ""


@contextmanager
def _private_folder(files: Mapping[str, str]) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="agentos-") as name:
        for file, text in files.items():
            (Path(name) / file).write_bytes(text.encode(errors="backslashreplace"))
        yield Path(name)


# --- signing ------------------------------------------------------------------------------------------------------


class SigningKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key to sign with."""

    path: str = ""
    """Of the private key, or of a public one whose other half an ssh-agent has."""
    public: str = ""
    """The public key itself, where there is no file of it: an ssh-agent has the other half."""
    why: str
    """Why this one, for people."""


def find_signing_key(root: Path, given: Path | None = None) -> SigningKey:
    """The key that is meant: the one given, that of git, the first of ssh-agent, or the user's own."""
    if given is not None:
        return SigningKey(path=os.path.abspath(given), why=f"{given}, as given")
    setting = _git_setting(root, "user.signingkey") if _git_setting(root, "gpg.format") == "ssh" else ""
    if literal := _PUBLIC.search(setting.removeprefix("key::")):
        return SigningKey(public=literal[0], why="git's user.signingkey")
    if setting:
        path = os.path.join(root, os.path.expanduser(setting))
        return SigningKey(path=path, why=f"{setting}, git's user.signingkey")
    if held := _PUBLIC.match(_agent_keys()):
        return SigningKey(public=held[0], why="the first key of ssh-agent")
    for name in _OWN_KEYS:
        if (path := os.path.expanduser(f"~/.ssh/{name}")) and os.path.isfile(path):
            return SigningKey(path=path, why=f"~/.ssh/{name}")
    raise CommandRefusedError(
        "there is no key to sign with: none in git's settings, none in ssh-agent, none in ~/.ssh",
        next_step="Name one with --key FILE, or make one: ssh-keygen -t ed25519",
    )


def sign(text: str, key: SigningKey) -> str:
    """The signature of a text. ssh-keygen has the terminal meanwhile, to ask for a passphrase, a PIN or a touch."""
    with _private_folder({"answer": text, "key.pub": key.public}) as folder:
        path = key.path or str(folder / "key.pub")
        try:
            done = subprocess.run(["ssh-keygen", "-Y", "sign", "-f", path, "-n", NAMESPACE, "answer"], cwd=folder)
            if done.returncode == 0:
                return (folder / "answer.sig").read_text()
        except FileNotFoundError as error:
            raise CommandRefusedError(NO_SSH_KEYGEN) from error
    raise CommandRefusedError(
        f"nothing was signed: ssh-keygen ended with {done.returncode}", next_step="Name another key with --key FILE."
    )


def _git_setting(root: Path, name: str) -> str:
    done = git.run(root, "config", "--get", name)
    return os.fsdecode(done.stdout).strip() if done.returncode == 0 else ""


def _agent_keys() -> str:
    try:
        done = subprocess.run(["ssh-add", "-L"], stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace") if done.returncode == 0 else ""
