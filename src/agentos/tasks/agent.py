"""Performs an attempt of an agent task: a program that works headless in the worktree, and tells about it."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
import uuid
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from agentos.exceptions import AgentFailed, CoolingDownError, ModelCallError, TaskCancelledError
from agentos.run.events import Session, Usage
from agentos.tasks.agents.adapter import Ended, Verdict, Word, json_text
from agentos.tasks.agents.earlier import Earlier, earlier_session
from agentos.tasks.agents.following import Follower
from agentos.tasks.agents.job import Job, job_of
from agentos.tasks.agents.record import digest_of, write_end, write_start
from agentos.tasks.agents.wording import RETRYABLE, failure_text, prompt_for
from agentos.tasks.attempt import AttemptHost, AttemptSpec, Outcome
from agentos.tasks.endings import describe_status, last_words, refuse_cut_short
from agentos.tasks.failures import told
from agentos.tasks.launch import Launch, cannot_start
from agentos.tasks.limiter import Call, Limiter
from agentos.tasks.masking import capture_of
from agentos.tasks.orphans import Mark
from agentos.tasks.outcomes import AttemptFailed, milliseconds_since, stored, unsuccessful
from agentos.tasks.shell import ShellPerformer
from agentos.tasks.supervise import Ending, Supervisor

COOL_DOWN_S = 30.0
"""After a 429 of an agent that does not say how long to wait."""


class _Tried(NamedTuple):
    verdict: Verdict
    session: str
    model: str
    used: Usage
    warnings: tuple[str, ...]


class AgentPerformer:
    """Runs an agent in a process group of its own. Success is what its last event says, and the task's `verify`."""

    def __init__(self, supervisor: Supervisor, limiter: Limiter) -> None:
        self._supervisor = supervisor
        self._limiter = limiter
        self._shell = ShellPerformer(supervisor)

    async def __call__(self, spec: AttemptSpec, host: AttemptHost) -> Outcome:
        began = perf_counter()
        folder: Path | None = None
        try:
            folder = _private_folder()
            job = await job_of(spec, host, folder)
            tried, notes = await self._tried(job, host)
            output = await self._output(job, tried, host)
        except AttemptFailed as failed:
            return unsuccessful(failed, began)
        except asyncio.CancelledError:  # while nothing ran: waiting for a slot, or looking for the session
            failure = told(TaskCancelledError("the attempt was cancelled before its agent was at work"))
            return unsuccessful(AttemptFailed(failure, retryable=False, cancelled=True), began)
        finally:
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
        warnings = notes + tried.warnings
        return Outcome(output=Raw(output), warnings=warnings, execution_time_ms=milliseconds_since(began))

    async def _tried(self, job: Job, host: AttemptHost) -> tuple[_Tried, tuple[str, ...]]:
        """One try; a second one, in a new session, where the session to go on with is gone."""
        notes: tuple[str, ...] = ()
        earlier = await earlier_session(job)
        if job.spec.session is not None and not earlier.id:
            notes = (f"the session of {job.work.agent} that was cut off is not known: a new one was begun",)
        tried = await self._try(job, host, earlier)
        if tried.verdict.session_lost:
            notes = (f"{job.work.agent} could not use its session ({tried.verdict.why}): a new one was begun",)
            tried = await self._try(job, host, Earlier())
        verdict = tried.verdict
        if verdict.outcome != "ok":
            raise _failed(job.work.agent, verdict.outcome, verdict.why, notes + tried.warnings)
        return tried, notes

    # --- one try ---------------------------------------------------------------------------------------------------

    async def _try(self, job: Job, host: AttemptHost, earlier: Earlier) -> _Tried:
        """Waits for a slot, then lets the agent work. Its session is durable before it starts, where it is known."""
        spec, traits = job.spec, job.agent.TRAITS
        try:
            async with self._limiter.call(
                job.credential, spec.models.limits_of(job.credential), lambda why: host.output("progress", why)
            ) as call:
                session = _session_for(job, earlier)
                asked = job.agent.call(job.ask(host, session=session.title or session.id, goes_on=earlier.name))
                schema = None if traits.takes_schema else job.work.schema
                interrupted = job.work.on_resume if spec.session is not None else None
                prompt = prompt_for(job.work.prompt, interrupted=interrupted, schema=schema)
                launch = Launch(
                    argv=(job.program, *asked.argv[1:]),
                    env={**asked.env, **job.env},
                    cwd=job.cwd,
                    stdin=job.write_files(prompt, asked),
                )
                session = msgspec.structs.replace(
                    session, id=session.id if traits.names_session else "", prompt=digest_of(prompt)
                )
                write_start(job, session, launch, prompt)
                if session.id or session.title:
                    await host.session(session)
                return await self._followed(job, host, launch, session, call)
        except CoolingDownError as error:
            raise AttemptFailed(told(error), retryable=False) from None

    async def _followed(self, job: Job, host: AttemptHost, launch: Launch, session: Session, call: Call) -> _Tried:
        spec = job.spec
        err = capture_of("stderr", spec, host)
        follower = Follower(
            job.agent.reader(),
            host,
            masker=spec.masker,
            log=spec.log,
            on_session=lambda id: _known(host, session, id),
            max_turns=None if job.agent.TRAITS.counts_turns else job.work.max_turns,
            priced=job.priced,
        )
        writing = asyncio.create_task(follower.write_down())
        writing.add_done_callback(follower.end_if_failed)
        try:
            with job.time as left_s:
                ending = await self._supervisor.run(
                    launch,
                    host,
                    mark=Mark(spec.attempt_id, str(spec.root)),
                    feeds=(follower.feed, err.feed),
                    timeout_s=left_s,
                    stop=follower.stop,
                )
            follower.close()
            err.close()
            await writing
        finally:
            writing.cancel()
        verdict = _judged(follower, ending, Ended(ending.status, err.last_lines(), job.left_files()))
        await follower.pay(verdict.used or Usage())
        call.spent(follower.used.cost_usd)
        if verdict.outcome == "api_rate":
            call.cool_down(verdict.retry_after_s or COOL_DOWN_S)
        write_end(spec, ending.status, verdict)
        refuse_cut_short(ending, last_words(None, err), spec.definition.timeout_s)
        model = follower.model or job.work.model
        return _Tried(verdict, follower.session or session.id, model, follower.used, ending.warnings)

    # --- what it gave ----------------------------------------------------------------------------------------------

    async def _output(self, job: Job, tried: _Tried, host: AttemptHost) -> bytes:
        verdict = tried.verdict
        output: dict[str, Any] = {"text": verdict.text}
        if job.schema is not None:
            answer = json_text(verdict.text) if verdict.json is None else json.dumps(verdict.json)
            try:
                output["json"] = job.schema.read(answer)
            except ModelCallError as error:
                raise _failed(job.work.agent, "agent_error", error.message) from None
        output |= {
            "session": tried.session,
            "agent": job.work.agent,
            "model": tried.model,
            "turns": verdict.turns,
            "usage": msgspec.structs.asdict(tried.used),
            "denials": list(verdict.denials),
        }
        if job.spec.verify:
            output["verify"] = await self._verified(job, host)
        return stored(output)

    async def _verified(self, job: Job, host: AttemptHost) -> Any:
        definition = msgspec.structs.replace(job.spec.definition, timeout_s=job.time.left_s, output="")
        spec = msgspec.structs.replace(job.spec, command=job.spec.verify, definition=definition)
        outcome = await self._shell(spec, host)
        if outcome.error is not None:
            if outcome.cancelled:
                raise AttemptFailed(outcome.error, retryable=False, cancelled=True, warnings=outcome.warnings)
            why = f"it says that it is done, but `verify` says otherwise: {outcome.error.text}"
            raise _failed(job.work.agent, "agent_error", why, outcome.warnings)
        return msgspec.json.decode(outcome.output)


def _session_for(job: Job, earlier: Earlier) -> Session:
    """The session of a try. Without a fork, the one to go on with stays the one it was."""
    traits = job.agent.TRAITS
    own = str(uuid.uuid4())  # the fourth version: not every agent takes others
    return Session(
        agent=job.work.agent,
        id=own if traits.forks or not earlier.id else earlier.id,
        title=f"{job.spec.attempt_id} {own[:8]}" if traits.titled and not earlier.id else "",
        program=job.program,
        version=job.version,
        forked_from=earlier.id if traits.forks else "",
        cwd=job.place,
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
    if verdict.outcome != "ok" and not verdict.why:
        return msgspec.structs.replace(verdict, why=f"its process {describe_status(ending.status)}")
    return verdict


def _failed(agent: str, word: Word, why: str, warnings: tuple[str, ...] = ()) -> AttemptFailed:
    text, next_step = failure_text(agent, word, why)
    error = AgentFailed(text, outcome=word, next_step=next_step)
    return AttemptFailed(told(error), retryable=word in RETRYABLE, warnings=warnings)


def _private_folder() -> Path:
    try:
        return Path(tempfile.mkdtemp(prefix="agentos-"))
    except OSError as error:
        raise cannot_start(error) from None
