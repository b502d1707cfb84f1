"""Briefs: what one is called, which run is its own, and whether anything that run began with has changed since.

A brief's identity is its path from the root. Its NAME is the slug of its file's stem, with a short hash where another
brief has that name already, perhaps one of another worktree that keeps its runs in the same database; a run of it has
the id `issue-NAME`, those begun anew `issue-NAME-2` and so on.
"""

from __future__ import annotations

import json
import os
import re
import stat
import unicodedata
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import msgspec

from agentos import Client, typed
from agentos.exceptions import NotFoundError, RunRefusedError
from agentos.store.port import UNFINISHED
from agentos.workflow.place.place import Place
from agentos.workflows.issue.flow import NAME, issue_flow
from agentos.workflows.issue.lineage import active_folder
from agentos.workflows.issue.prompts import prompts_digest
from agentos.workflows.issue.steps import digest_of

IDEAS = Path("ideas/active")
"""Where `--select` and `--all` look for briefs."""
MAX_BYTES = 1 << 20
SHORT = 50
"""Characters below which a brief is worth a warning."""
_ENCRYPTED = b"\0GITCRYPT"
_LONGEST = 60


class IssueSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How an issue is made: what `issue_flow` is given."""

    drafter: str = "agent:claude"
    reviewer: str = "agent:codex"
    filer: str = "gh"
    gates: tuple[str, ...] = ("draft", "verdict")
    max_rounds: int = 5
    budget: float | None = None

    def arguments(self) -> dict[str, Any]:
        data: dict[str, Any] = msgspec.to_builtins(self)
        return data


class Brief(msgspec.Struct, frozen=True, kw_only=True):
    """A brief as it is now."""

    path: str
    """From the root, where it lies below it: its identity."""
    digest: str
    characters: int

    @property
    def is_short(self) -> bool:
        return self.characters < SHORT


class IssueRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run of the issue workflow, as far as the store knows it."""

    name: str
    workflow_id: str
    status: str
    params: Mapping[str, Any]
    settings: IssueSettings
    """Those it was begun with."""
    is_own: bool
    """Of this worktree: a database may hold runs of several."""
    dropped: Literal["", "aborted", "rejected"] = ""
    """How somebody ended it for good: no resume goes on with it."""


def read_brief(given: Path, root: Path) -> Brief:
    """The brief of this file. RunRefusedError where it cannot be one."""
    data = _read(given)
    real, top = given.resolve(), root.resolve()
    if _leads_out(given, real, top):
        # Somebody else may have made the link, and what a brief holds is sent to models and filed for all to see.
        raise _brief_refusal(given, f"is a link that leads out of the repository, to {real}", "Name that file itself.")
    if data.startswith(_ENCRYPTED):
        raise _brief_refusal(given, "is encrypted by git-crypt", "Unlock the repository first.")
    if len(data) > MAX_BYTES:
        raise _brief_refusal(
            given, f"has more than {MAX_BYTES:,} bytes", "Write down what is wanted, in a page or two."
        )
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise _brief_refusal(given, f"is not UTF-8: {error}", "Name a text file.") from error
    if "\0" in text:
        raise _brief_refusal(given, "is no text: it holds a zero byte", "Name a text file.")
    if not text.strip():
        raise _brief_refusal(given, "is empty", "Write down what is wanted, in a line or two.")
    identity = real.relative_to(top) if real.is_relative_to(top) else real
    return Brief(path=str(identity), digest=digest_of(data), characters=len(text.strip()))


def _leads_out(given: Path, real: Path, top: Path) -> bool:
    """Whether a name inside the root means a file outside of it."""
    inside = Path(os.path.abspath(given)).is_relative_to(top) or given.parent.resolve().is_relative_to(top)
    return inside and not real.is_relative_to(top)


def _read(path: Path) -> bytes:
    try:
        # Else the open itself would hang at a named pipe.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise _brief_refusal(path, "is not a regular file", "Name a text file.")
            return file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        why = getattr(error, "strerror", None) or error
        raise _brief_refusal(
            path, f"cannot be read: {why}", "Name another; --select shows those of ideas/active/."
        ) from error


def _brief_refusal(path: Path, why: str, next_step: str) -> RunRefusedError:
    return RunRefusedError(f"the brief {path} {why}", next_step=next_step)


def ideas(root: Path) -> tuple[list[Path], int]:
    """The briefs of `ideas/active/`, by name, and how many files there are encrypted."""
    files = sorted(path for path in (root / IDEAS).glob("*.md") if path.is_file())
    encrypted = [path for path in files if _begins_with(path, _ENCRYPTED)]
    return [path for path in files if path not in encrypted], len(encrypted)


def _begins_with(path: Path, start: bytes) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(start)) == start
    except OSError:  # told when the brief itself is read
        return False


def slug(stem: str) -> str:
    """A file's stem as a name: "My Feature_Ideas" is my-feature-ideas."""
    plain = unicodedata.normalize("NFKD", stem).encode("ascii", "ignore").decode().lower()
    words = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")
    return words[:_LONGEST].strip("-") or "brief"


# --- runs of a brief ----------------------------------------------------------------------------------------------


def runs_of(client: Client, brief: Brief) -> tuple[list[IssueRun], str]:
    """The runs of this brief, oldest first, and the name that the next one would have."""
    name = slug(Path(brief.path).stem)
    own, others, free = _family(client, brief, name)
    if others and not own:
        whole = f"{client.place.root}\0{brief.path}"
        own, _, free = _family(client, brief, f"{name}-{sha256(whole.encode()).hexdigest()[:6]}")
    return own, free


def _family(client: Client, brief: Brief, base: str) -> tuple[list[IssueRun], bool, str]:
    own: list[IssueRun] = []
    others = False
    for name in _names(base):
        run = issue_run(client, name)
        if run is not None and run.is_own and run.params.get("brief") == brief.path:
            own.append(run)
        elif run is not None or (client.place.root / active_folder(name)).exists():
            others = True
        else:
            return own, others, name
    raise AssertionError("names do not end")


def _names(base: str) -> Iterator[str]:
    yield base
    number = 2
    while True:
        yield f"{base}-{number}"
        number += 1


def issue_run(client: Client, name: str) -> IssueRun | None:
    """The run of this name; None where there is none, or one of another kind."""
    workflow_id = run_id(name)
    try:
        record = client.find(workflow_id)
    except (NotFoundError, RunRefusedError):  # none, or several that only begin like it
        return None
    if record.workflow_id != workflow_id or record.name != NAME or not record.source:
        return None
    arguments = json.loads(record.source).get("arguments", {})
    return IssueRun(
        name=name,
        workflow_id=workflow_id,
        status=record.status,
        params=dict(client.plan(workflow_id).params),
        settings=typed.convert(arguments, IssueSettings),
        is_own=_is_own(record.root, client.place),
        dropped=_how_dropped(client, workflow_id, record.status),
    )


def _how_dropped(client: Client, workflow_id: str, status: str) -> Literal["", "aborted", "rejected"]:
    if status == "failed" and client.show(workflow_id).is_rejected:
        return "rejected"
    return "aborted" if status == "aborted" else ""


def _is_own(root: str, place: Place) -> bool:
    """Runs in a worktree's own database stay its own when it moves; a resume then asks for --repo."""
    return root == str(place.root) or Path(place.database).is_relative_to(place.root)


def list_unfinished(client: Client) -> list[IssueRun]:
    """Issue runs of this worktree that are not over, newest first."""
    left = [record for record in client.list_runs(statuses=UNFINISHED) if record.name == NAME]
    found = (issue_run(client, record.workflow_id.removeprefix("issue-")) for record in left)
    return [run for run in found if run is not None and run.is_own and not run.dropped]


def run_id(name: str) -> str:
    return f"issue-{name}"


def parameters(brief: Brief, name: str) -> dict[str, str]:
    """What a new run of this brief is given."""
    return {"brief": brief.path, "name": name, "digest": brief.digest, "prompts": prompts_digest()}


def flow_of(settings: IssueSettings) -> Any:
    return issue_flow(**settings.arguments())


def changes_since(run: IssueRun, brief: Brief, asked: Mapping[str, Any]) -> list[str]:
    """What is no longer as it was when the run began, in words. `asked` are the settings that were typed now."""
    found = []
    if run.params.get("digest") != brief.digest:
        found.append(f"the brief {brief.path}")
    if run.params.get("prompts") != prompts_digest():
        found.append("the prompts of this AgentOS")
    for name, value in asked.items():
        before = getattr(run.settings, name)
        if before != value:
            found.append(f"{_WORDS.get(name, name)}: {_spell(before)} then, {_spell(value)} now")
    return found


_WORDS = {"filer": "what files", "max_rounds": "the most rounds", "gates": "the gates", "budget": "the budget"}


def _spell(value: object) -> str:
    return ",".join(map(str, value)) or "none" if isinstance(value, tuple) else str(value)
