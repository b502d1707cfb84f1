"""What stays the same over the tries of one attempt of an agent; the session that an earlier one left, and the
agent's own account of it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from glob import escape, glob
from pathlib import Path
from time import monotonic
from typing import BinaryIO, NamedTuple

import msgspec

from agentos.dag.define.model_calls import AgentWork
from agentos.exceptions import AttemptError
from agentos.machine.events import Usage
from agentos.secrets import Masker
from agentos.tasks.agents.adapters import opencode
from agentos.tasks.agents.adapters.adapter import Agent, AgentInvocation, Ask, Traits, TranscriptLocation
from agentos.tasks.agents.adapters.known import AGENTS, version_of
from agentos.tasks.attempt import AttemptHost, AttemptLog, AttemptSpec
from agentos.tasks.failures import plain_failure
from agentos.tasks.llm.answer_schemas import AnswerSchema
from agentos.tasks.llm.model_settings import Price
from agentos.tasks.outcomes import AttemptFailed
from agentos.tasks.process.ancestors import start_own
from agentos.tasks.process.launch import Launch, environment_of, permanent_failure, start_failure, working_folder

SUFFIX = ".transcript.jsonl"
_ID = re.compile(r"[\w-]{8,100}", re.ASCII)
"""Of a session: an agent tells its own, and it must not lead to another file."""
_AT_ONCE = 1 << 20
_SHORT = 8
_HEAD_BYTES = 1 << 16


class CopiedTranscript(msgspec.Struct, frozen=True, kw_only=True):
    """A transcript that was copied."""

    file: str
    """Its name, in the folder of the log."""
    source: str
    left_out: int = 0
    """Bytes of its beginning that were too much."""


def transcript_of(kept: TranscriptLocation | None, session: str, env: Mapping[str, str]) -> str:
    """The path of the session's transcript, the newest where there are several; empty where there is none."""
    if kept is None or not _ID.fullmatch(session):
        return ""
    home = env.get("HOME") or os.path.expanduser("~")
    folder = env.get(kept.variable) or os.path.join(home, kept.folder)
    pattern = kept.pattern.format(id=session, short=session[:_SHORT])
    newest, changed = "", -1.0
    for path in glob(os.path.join(escape(folder), pattern)):
        try:
            at = os.stat(path).st_mtime
            if session not in path:  # not every agent has all of the id in its name
                with _open_file(path) as file:
                    if session.encode() not in file.read(_HEAD_BYTES):
                        continue
        except OSError:
            continue
        if at > changed:
            newest, changed = path, at
    return newest


class SessionTokens:
    """What the session of an attempt has used, read from its transcript as that grows."""

    def __init__(self, traits: Traits, env: Mapping[str, str], *, calls: int = 0) -> None:
        """`calls` were made before this transcript began."""
        self._traits, self._env, self._calls = traits, env, calls
        self._tally = traits.tokens_of() if traits.tokens_of is not None else None
        self._path, self._read = "", 0
        self._found: Usage | None = None

    def read(self, session: str) -> Usage | None:
        """None: it does not say. Blocks."""
        if self._tally is None:
            return None
        try:
            self._path = self._path or transcript_of(self._traits.transcript, session, self._env)
            if not self._path:
                return None
            with _open_file(self._path) as file:
                file.seek(self._read)
                for line in file:
                    if not line.endswith(b"\n"):  # it is being written
                        break
                    self._read += len(line)
                    if (told := self._tally(line.decode(errors="replace"))) is not None:
                        self._note(told)
        except OSError:
            pass
        return self._found

    def _note(self, told: Usage) -> None:
        known = self._found
        if told.calls:
            self._found = told
            return
        if known is None or (told.input_tokens, told.output_tokens) != (known.input_tokens, known.output_tokens):
            self._found = msgspec.structs.replace(told, calls=(known.calls if known is not None else self._calls) + 1)


def copy_transcript(source: str, log: AttemptLog, masker: Masker) -> CopiedTranscript | None:
    """Copies it, masked; of one that is too long the end. None where it cannot be read or written. Blocks."""
    try:
        with _open_file(source) as file:
            size = os.fstat(file.fileno()).st_size
            left_out = 0
            if size > log.limit:  # from the first line that begins after what is too much, or right behind that
                file.seek(size - log.limit - 1)
                while (piece := file.readline(_AT_ONCE)) and not piece.endswith(b"\n"):
                    pass
                left_out = file.tell()
            name = log.keep(SUFFIX, _mask_chunks(file, left_out, size - left_out, masker))
    except OSError:
        return None
    return CopiedTranscript(file=name, source=masker.text(source), left_out=left_out) if name else None


def _open_file(path: str) -> BinaryIO:
    opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise OSError(f"{path} is no file")
    return os.fdopen(opened, "rb")


def _mask_chunks(file: BinaryIO, left_out: int, size: int, masker: Masker) -> Iterator[bytes]:
    if left_out:
        note = f"{left_out} bytes were left out: of a transcript as much is kept as of a log, from its end"
        yield json.dumps({"agentos_note": note}).encode() + b"\n"
    stream = masker.stream()
    while data := file.read(min(size, _AT_ONCE)):  # and no further, should something still write to it
        size -= len(data)
        yield stream.feed(data)
    yield stream.finish()


PROMPT = "prompt"
MAX_LEFT_BYTES = 1 << 20
"""Read of a file that an agent leaves in its private folder."""
LISTING_S = 30.0


class TimeLeft:
    """Of the attempt's timeout. Waiting for a slot uses none of it up."""

    def __init__(self, timeout_s: float | None) -> None:
        self.left_s = timeout_s
        self._began = 0.0

    def __enter__(self) -> float | None:
        self._began = monotonic()
        return self.left_s

    def __exit__(self, *_: object) -> None:
        if self.left_s is not None:
            self.left_s = max(0.001, self.left_s - (monotonic() - self._began))


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent is to do, where, and with which program."""

    spec: AttemptSpec
    work: AgentWork
    agent: Agent
    program: str
    version: str
    env: Mapping[str, str]
    cwd: Path
    place: str
    """`cwd`, from the root."""
    folder: Path
    """Private, and gone after the attempt."""
    schema: AnswerSchema | None
    time: TimeLeft

    @property
    def credential(self) -> str:
        """By which name its limits are set: the agent's, or that of the program."""
        return self.work.agent if self.agent.TRAITS.program else os.path.basename(self.program)

    def ask(self, host: AttemptHost, *, session: str, goes_on: str) -> Ask:
        work = self.work
        return Ask(
            model=work.model,
            permissions=work.permissions,
            allowed_tools=work.allowed_tools,
            max_turns=work.max_turns,
            # With a price we count it ourselves: an agent that stops by itself throws its last paid answer away.
            budget_usd=host.allowance().cost_usd if self._price(work.model) is None else None,
            schema=work.schema,
            command=work.command,
            session=session,
            goes_on=goes_on,
            folder=str(self.folder),
        )

    def add_cost(self, used: Usage, model: str) -> Usage:
        """With what it cost by the settings, where the agent has not told; `model` is the one it says it uses."""
        price = self._price(model)
        if price is None or used.cost_usd:
            return used
        cost_usd = price.cost_usd(used.input_tokens, used.output_tokens, used.cached_tokens)
        return msgspec.structs.replace(used, cost_usd=cost_usd)

    def _price(self, model: str) -> Price | None:
        models = self.spec.models
        return models.price_of(self.work.model) or models.price_of(model)

    def cost_warnings(self, used: Usage, model: str, host: AttemptHost) -> tuple[str, ...]:
        """A warning where dollars are limited, and nobody knows what was used has cost."""
        limited = host.allowance().cost_usd is not None
        limited = limited or self.spec.models.limits_of(self.credential).per_day_usd is not None
        if not limited or not used.tokens or used.cost_usd or self._price(model) is not None:
            return ()
        name = self.work.model or model or "MODEL"
        return (
            f"nobody knows what the {used.tokens:,} tokens of {self.work.agent} cost: limits in dollars do not count "
            f'them. Give the price of its model in agentos.toml, [prices."{name}"], and they do.',
        )

    def enclose(self, launch: Launch) -> Launch:
        """The same behind the wall that the task asks for, with what the agent keeps; unchanged where it asks none."""
        if not self.spec.definition.sandbox:
            return launch
        from agentos.tasks.process.sandbox import HomeNeeds, enclose  # few tasks ask for it

        traits = self.agent.TRAITS
        if traits.own_sandbox and self.work.permissions != "full":
            raise permanent_failure(
                f"{self.work.agent} has a sandbox of its own, which does not work inside `sandbox: worktree`: "
                "give the task `permissions: full`, so that ours is the only one, or take `sandbox` away"
            )
        kept = [(one, one.path(self.env)) for one in traits.keeps]
        needs = HomeNeeds(
            program=self.program,
            write=tuple(path for one, path in kept if not one.read_only),
            read=tuple(os.path.join(path, name) for one, path in kept for name in (one.fixed or ("",) * one.read_only)),
            copies=traits.home_files,
            variables=(*traits.variables, *(traits.sign_in.variables if traits.sign_in else ())),
        )
        return enclose(launch, self.spec, self.folder, needs)

    def write_files(self, prompt: str, call: AgentInvocation) -> Path:
        """What the program reads; the path of its stdin comes back."""
        try:
            path = self.folder / PROMPT
            for name, text in {**call.files, PROMPT: prompt}.items():
                # A try before this one may have put a link there: it would lead us where the agent itself must not go.
                (self.folder / name).unlink(missing_ok=True)
                with open(self.folder / name, "xb") as file:
                    file.write(text.encode(errors="surrogateescape"))
        except OSError as error:
            raise start_failure(error) from None
        return path

    def read_output_files(self) -> dict[str, str]:
        """Plain files of JSON that the agent left; links are not followed. None where it cleared the folder away."""
        left: dict[str, str] = {}
        with suppress(OSError):
            for entry in os.scandir(self.folder):
                if entry.name.endswith(".json") and entry.is_file(follow_symlinks=False):
                    with open(entry.path, "rb") as file:
                        left[entry.name] = file.read(MAX_LEFT_BYTES).decode(errors="replace")
        return left


async def prepare_assignment(spec: AttemptSpec, host: AttemptHost, folder: Path) -> Assignment:
    """AttemptFailed, which no retry helps, where it cannot be done at all."""
    work = spec.agent
    if work is None or work.agent not in AGENTS:
        raise permanent_failure("the task does not say which agent is to do what")
    agent = AGENTS[work.agent]
    env = {**environment_of(spec), "NO_COLOR": "1"}
    cwd = working_folder(spec)
    name = agent.TRAITS.program or (work.command[0] if work.command else "")
    program = shutil.which(str(cwd / name) if "/" in name else name, path=env.get("PATH", os.defpath))
    if program is None:
        where = f"there is no program {cwd / name}" if "/" in name else f"{name!r} is in no folder of PATH"
        package = agent.TRAITS.package
        remedy = f"install it: npm install -g {package}" if package else "install it, or say where it is"
        raise permanent_failure(f"{where}: {remedy}; `agentos doctor` lists the agents that are found")
    _refuse_uncounted(agent, work, spec, host)
    try:
        schema = AnswerSchema(work.schema) if work.schema is not None else None
    except AttemptError as error:
        raise AttemptFailed(plain_failure(error), retryable=False) from None
    return Assignment(
        spec=spec,
        work=work,
        agent=agent,
        program=program,
        version=await asyncio.to_thread(version_of, program) if agent.TRAITS.program else "",
        env=env,
        cwd=cwd,
        place=os.path.relpath(cwd, spec.worktree or spec.root),  # noqa: ASYNC240 (of two absolute paths: asks nobody)
        folder=folder,
        schema=schema,
        time=TimeLeft(spec.definition.timeout_s),
    )


def _refuse_uncounted(agent: Agent, work: AgentWork, spec: AttemptSpec, host: AttemptHost) -> None:
    """Money is limited, and nobody would count it: the limit would never be reached."""
    if agent.TRAITS.tells_cost or not agent.TRAITS.program or spec.models.price_of(work.model) is not None:
        return
    limits = spec.models.limits_of(work.agent)
    if host.allowance().cost_usd is not None or limits.per_day_usd is not None:
        model = work.model or "MODEL"
        error = AttemptError(
            f"there is a limit in dollars, and {work.agent} does not tell what it costs",
            next_step=f'Give the task a `model` and its price in agentos.toml, [prices."{model}"] with '
            "input_per_million and output_per_million, or limit tokens instead.",
        )
        raise AttemptFailed(plain_failure(error), retryable=False)


# --- the session that was interrupted ------------------------------------------------------------------------------


class EarlierSession(NamedTuple):
    """A session to go on with."""

    id: str = ""
    """Empty: there is none, or nobody knows which."""
    name: str = ""
    """What the agent is given to find it."""


async def find_earlier_session(errand: Assignment) -> EarlierSession:
    """The session that an attempt which was interrupted has left, by what the journal knows of it."""
    session = errand.spec.session
    if session is None or session.agent != errand.work.agent:
        return EarlierSession()
    if session.agent == "claude":
        # It keeps sessions by folder: that of an isolated attempt, whose worktree is gone, it finds by path alone. One
        # that was killed before it wrote anything has none; then the session it was a copy of goes on.
        for id in filter(None, (session.id, session.forked_from)):
            if path := await asyncio.to_thread(transcript_of, errand.agent.TRAITS.transcript, id, errand.env):
                return EarlierSession(id, path)
        return EarlierSession(session.id, session.id)
    if session.id:
        return EarlierSession(session.id, session.id)
    found = await _find_by_title(errand, session.title) if session.title else ""
    return EarlierSession(found, found)


async def _find_by_title(errand: Assignment, title: str) -> str:
    listing = Launch(argv=(errand.program, *opencode.LISTING), env=errand.env, cwd=errand.cwd)
    listing = await asyncio.to_thread(errand.enclose, listing)  # it reads settings in the worktree, and obeys them
    process = await start_own(
        *listing.argv,
        cwd=listing.cwd,
        env=listing.env,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        listed, _ = await asyncio.wait_for(process.communicate(), LISTING_S)
    except TimeoutError:
        return ""
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return opencode.find_session(listed.decode(errors="replace"), title)
