"""Performs an attempt of an agent task: a program that works headless in the worktree, and tells about it."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from agentos.dag.models import AgentWork
from agentos.exceptions import AgentFailed
from agentos.run.events import Session, Usage
from agentos.tasks.agents import opencode
from agentos.tasks.agents.adapter import Agent, Ask, Call, Ended, Verdict, Word, json_answer
from agentos.tasks.agents.following import Follower
from agentos.tasks.agents.installed import version_of
from agentos.tasks.agents.known import AGENTS
from agentos.tasks.agents.record import digest_of, write_end, write_start
from agentos.tasks.agents.wording import RETRYABLE, failure_text, prompt_for
from agentos.tasks.attempt import AttemptHost, AttemptSpec, Outcome
from agentos.tasks.endings import describe_status, last_words, refuse_cut_short
from agentos.tasks.failures import told
from agentos.tasks.launch import Launch, cannot_start, environment_of, refused, working_folder
from agentos.tasks.masking import capture_of
from agentos.tasks.orphans import Mark
from agentos.tasks.outcomes import AttemptFailed, milliseconds_since, stored, unsuccessful
from agentos.tasks.shell import ShellPerformer
from agentos.tasks.supervise import Ending, Supervisor

MAX_LEFT_BYTES = 1 << 20
"""Read of a file that an agent leaves in its private folder."""
LISTING_S = 30.0


class _Job(NamedTuple):
    """What stays the same over the tries of one attempt."""

    spec: AttemptSpec
    work: AgentWork
    agent: Agent
    program: str
    version: str
    env: Mapping[str, str]
    cwd: Path
    place: str
    """The same, from the root."""
    folder: Path
    until: float | None


class _Tried(NamedTuple):
    verdict: Verdict
    session: str
    model: str
    used: Usage
    warnings: tuple[str, ...]


class AgentPerformer:
    """Runs an agent in a process group of its own. Success is what its last event says, and the task's `verify`."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._shell = ShellPerformer(supervisor)
        self._versions: dict[tuple[str, int], str] = {}

    async def __call__(self, spec: AttemptSpec, host: AttemptHost) -> Outcome:
        began = perf_counter()
        folder: Path | None = None
        try:
            folder = _private_folder()
            job = await self._job(spec, folder)
            tried, notes = await self._tried(job, host)
            output = await self._output(job, tried, host)
        except AttemptFailed as failed:
            return unsuccessful(failed, began)
        finally:
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
        warnings = notes + tried.warnings
        return Outcome(output=Raw(output), warnings=warnings, execution_time_ms=milliseconds_since(began))

    async def _job(self, spec: AttemptSpec, folder: Path) -> _Job:
        work = spec.agent
        if work is None or work.agent not in AGENTS:
            raise refused("the task does not say which agent is to do what")
        agent = AGENTS[work.agent]
        env = {**environment_of(spec), "NO_COLOR": "1"}
        name = agent.TRAITS.program or (work.command[0] if work.command else "")
        cwd = working_folder(spec)
        program = shutil.which(str(cwd / name) if "/" in name else name, path=env.get("PATH", os.defpath))
        if program is None:
            raise refused(f"{name!r} is in no folder of PATH: install it, or let PATH lead to it; see `agentos doctor`")
        timeout_s = spec.definition.timeout_s
        return _Job(
            spec=spec,
            work=work,
            agent=agent,
            program=program,
            version=await self._version(program) if agent.TRAITS.program else "",
            env=env,
            cwd=cwd,
            place=_place(cwd, spec),
            folder=folder,
            until=None if timeout_s is None else monotonic() + timeout_s,
        )

    async def _version(self, program: str) -> str:
        key = program, os.stat(program).st_mtime_ns
        if key not in self._versions:
            self._versions[key] = await asyncio.to_thread(version_of, program)
        return self._versions[key]

    async def _tried(self, job: _Job, host: AttemptHost) -> tuple[_Tried, tuple[str, ...]]:
        """One try; a second one, in a new session, where the session to go on with is gone."""
        notes: tuple[str, ...] = ()
        goes_on = await self._session_to_go_on(job)
        if job.spec.session is not None and not goes_on:
            notes = (f"the session of {job.work.agent} that was cut off is not known: a new one was begun",)
        tried = await self._try(job, host, goes_on)
        if tried.verdict.session_lost:
            notes = (f"{job.work.agent} could not use its session ({tried.verdict.why}): a new one was begun",)
            tried = await self._try(job, host, "")
        verdict = tried.verdict
        if verdict.outcome != "ok":
            raise _failed(job.work.agent, verdict.outcome, verdict.why, notes + tried.warnings)
        return tried, notes

    async def _session_to_go_on(self, job: _Job) -> str:
        session = job.spec.session
        if session is None or session.agent != job.work.agent:
            return ""
        if session.id or not session.title:
            return session.id
        process = await asyncio.create_subprocess_exec(
            job.program,
            *opencode.listing()[1:],
            cwd=job.cwd,
            env=job.env,
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
        return opencode.find_session(listed.decode(errors="replace"), session.title)

    # --- one try ---------------------------------------------------------------------------------------------------

    async def _try(self, job: _Job, host: AttemptHost, goes_on: str) -> _Tried:
        spec, traits = job.spec, job.agent.TRAITS
        own = str(uuid.uuid4())
        title = f"{spec.attempt_id} {own[:8]}" if traits.titled else ""
        call = job.agent.call(_ask(job, host, session=title or own, goes_on=goes_on))
        env = {**call.env, **job.env}
        prompt = prompt_for(
            job.work.prompt, goes_on=spec.session is not None, schema=None if traits.takes_schema else job.work.schema
        )
        argv = (job.program, *call.argv[1:])
        # Without a fork the session that was there is the one that goes on.
        known = (own if traits.forks or not goes_on else goes_on) if traits.names_session else ""
        session = Session(
            agent=job.work.agent,
            id=known,
            title=title if not goes_on else "",
            program=job.program,
            version=job.version,
            forked_from=goes_on if goes_on and traits.forks else "",
            cwd=job.place,
            prompt=digest_of(prompt),
        )
        try:
            stdin = _written(job.folder, prompt, call)
        except OSError as error:
            raise cannot_start(error) from None
        timeout_s = None if job.until is None else max(0.0, job.until - monotonic())
        write_start(spec, session, argv, env, prompt, timeout_s)
        if session.id or session.title:
            await host.session(session)
        follower = Follower(
            job.agent.reader(),
            host,
            masker=spec.masker,
            log=spec.log,
            on_session=lambda id: _known(host, session, id),
            max_turns=None if traits.counts_turns else job.work.max_turns,
        )
        launch = Launch(argv=argv, env=env, cwd=job.cwd, stdin=stdin)
        return await self._followed(job, host, launch, follower, session)

    async def _followed(
        self, job: _Job, host: AttemptHost, launch: Launch, follower: Follower, session: Session
    ) -> _Tried:
        spec = job.spec
        err = capture_of("stderr", spec, host)
        writing = asyncio.create_task(follower.write_down())
        # What cannot be written down must not go on.
        writing.add_done_callback(lambda ended: follower.end_if_failed(ended))
        timeout_s = None if job.until is None else max(0.0, job.until - monotonic())
        try:
            ending = await self._supervisor.run(
                launch,
                host,
                mark=Mark(spec.attempt_id, str(spec.root)),
                feeds=(follower.feed, err.feed),
                timeout_s=timeout_s,
                stop=follower.stop,
            )
            follower.close()
            err.close()
            await writing
        finally:
            if not writing.done():
                writing.cancel()
        ended = Ended(status=ending.status, stderr=err.last_lines(), left=_left(job.folder))
        verdict = _judged(follower, ending, ended)
        if verdict.used is not None:
            await follower.pay(verdict.used)
        write_end(spec, ending.status, verdict)
        refuse_cut_short(ending, last_words(err, err) if err.total else "", spec.definition.timeout_s)
        model = follower.model or job.work.model
        return _Tried(verdict, follower.session or session.id, model, follower.used, ending.warnings)

    # --- what it gave ----------------------------------------------------------------------------------------------

    async def _output(self, job: _Job, tried: _Tried, host: AttemptHost) -> bytes:
        verdict, work = tried.verdict, job.work
        output: dict[str, Any] = {"text": verdict.text}
        if work.schema is not None:
            output["json"] = verdict.json if verdict.json is not None else json_answer(verdict.text)
            if output["json"] is None:
                raise _failed(work.agent, "agent_error", f"its answer is no JSON document: {verdict.text[:500]!r}")
        output |= {
            "session": tried.session,
            "agent": work.agent,
            "model": tried.model,
            "turns": verdict.turns,
            "usage": msgspec.to_builtins(tried.used),
            "denials": list(verdict.denials),
        }
        if job.spec.verify:
            output["verify"] = await self._verified(job, host)
        return stored(output)

    async def _verified(self, job: _Job, host: AttemptHost) -> Any:
        left_s = None if job.until is None else max(0.0, job.until - monotonic())
        definition = msgspec.structs.replace(job.spec.definition, timeout_s=left_s, output="")
        spec = msgspec.structs.replace(job.spec, command=job.spec.verify, definition=definition)
        outcome = await self._shell(spec, host)
        if outcome.error is not None:
            if outcome.cancelled:
                raise AttemptFailed(outcome.error, retryable=False, cancelled=True, warnings=outcome.warnings)
            why = f"it says that it is done, but `verify` says otherwise: {outcome.error.text}"
            raise _failed(job.work.agent, "agent_error", why, outcome.warnings)
        return msgspec.json.decode(outcome.output)


def _ask(job: _Job, host: AttemptHost, *, session: str, goes_on: str) -> Ask:
    work = job.work
    return Ask(
        model=work.model,
        permissions=work.permissions,
        allowed_tools=work.allowed_tools,
        max_turns=work.max_turns,
        budget_usd=host.allowance().cost_usd,
        schema=work.schema,
        command=work.command,
        session=session,
        goes_on=goes_on,
        folder=str(job.folder),
    )


async def _known(host: AttemptHost, session: Session, id: str) -> None:
    if id != session.id:
        await host.session(msgspec.structs.replace(session, id=id))


def _judged(follower: Follower, ending: Ending, ended: Ended) -> Verdict:
    verdict = follower.verdict(ended)
    if ending.why == "stopped":
        return msgspec.structs.replace(verdict, outcome=follower.stop.result(), why="")
    if ending.why == "timeout":
        return msgspec.structs.replace(verdict, outcome="timeout")
    if ending.why == "cancelled" or (verdict.outcome != "ok" and (ending.status or 0) < 0):
        return msgspec.structs.replace(verdict, outcome="killed", why=f"its process {describe_status(ending.status)}")
    if verdict.outcome == "no_result" and not verdict.why:
        return msgspec.structs.replace(verdict, why=f"its process {describe_status(ending.status)}")
    return verdict


def _failed(agent: str, word: Word, why: str, warnings: tuple[str, ...] = ()) -> AttemptFailed:
    text, next_step = failure_text(agent, word, why)
    error = AgentFailed(text, outcome=word, next_step=next_step)
    return AttemptFailed(told(error), retryable=word in RETRYABLE, warnings=warnings)


def _place(cwd: Path, spec: AttemptSpec) -> str:
    return os.path.relpath(cwd, spec.worktree or spec.root)


def _private_folder() -> Path:
    try:
        return Path(tempfile.mkdtemp(prefix="agentos-"))
    except OSError as error:
        raise cannot_start(error) from None


def _written(folder: Path, prompt: str, call: Call) -> Path:
    for name, text in call.files.items():
        (folder / name).write_text(text)
    path = folder / "prompt"
    path.write_bytes(prompt.encode(errors="surrogateescape"))
    return path


def _left(folder: Path) -> dict[str, str]:
    """Plain files that the agent left; what it put there instead is not followed."""
    left: dict[str, str] = {}
    for entry in os.scandir(folder):
        if entry.name != "prompt" and entry.is_file(follow_symlinks=False):
            with open(entry.path, "rb") as file:
                left[entry.name] = file.read(MAX_LEFT_BYTES).decode(errors="replace")
    return left
