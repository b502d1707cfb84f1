"""Performs an attempt of an agent task: a program that works headless in the worktree, and tells about it."""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from time import perf_counter
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from agentos.dag.define.model_calls import OnResume, VerifyCommand
from agentos.dag.plan.checks import changes_files
from agentos.exceptions import AgentFailed, AttemptError, CoolingDownError, ModelCallError, TaskCancelledError
from agentos.excerpts import shorten_command
from agentos.machine.events import NO_USAGE, AgentEnd, AgentSession, Usage, Verification, VerifyCheck
from agentos.machine.inputs import AttemptResult, LimitReached
from agentos.tasks.agents.adapters.adapter import AgentExit, AgentOutcome, AgentVerdict
from agentos.tasks.agents.adapters.usage_limits import believable, reset_time
from agentos.tasks.agents.assignment import (
    Assignment,
    EarlierSession,
    SessionTokens,
    copy_transcript,
    find_earlier_session,
    prepare_assignment,
    transcript_of,
)
from agentos.tasks.agents.watcher import Follower
from agentos.tasks.attempt import AttemptHost, AttemptSpec
from agentos.tasks.failures import plain_failure
from agentos.tasks.llm.answer_schemas import json_text
from agentos.tasks.llm.limiter import CallSlot, Limiter, put_off_if_used_up
from agentos.tasks.masking import capture_of
from agentos.tasks.outcomes import AttemptFailed, encode_result, failure_outcome, milliseconds_since
from agentos.tasks.process.launch import Launch, PrivateFolder, private_folder
from agentos.tasks.process.supervision import (
    Ending,
    Supervisor,
    describe_status,
    last_words,
    refuse_cut_short,
    was_ended,
)
from agentos.tasks.shell import ShellPerformer

_GOES_ON = """\
You were interrupted while you worked on the task below, and some time has passed since. The files are as they were \
after your last completed step, or a step before it: do not rely on edits that you remember, look at the files. \
Keep what is done, do what is left, and finish the task.

The task, once more:

"""
_TAKES_OVER = """\
Another agent worked on the task below and had to stop. Some of it may be done: look at the files first. Keep what is \
done, do what is left, and finish the task.

The task:

"""
_REJECTED = """\
What you did was looked at, and is not accepted yet:

{feedback}

The files are as you left them. Mend this, and finish the task.
"""
_SAID_BEFORE = """

Before you were interrupted, this was said about your work:

{feedback}
"""
_FORKED = """\
You were interrupted while you worked on the task below, and some time has passed since. All that you had done to the \
files was undone: they are as they were when you began. Use what you have learned, and do the whole task.

The task, once more:

"""
_BY_SCHEMA = """

When you are done, answer with one JSON document that follows this JSON Schema, and with nothing else:
"""

RETRYABLE: frozenset[AgentOutcome] = frozenset(
    {"agent_error", "api_rate", "api_5xx", "budget", "timeout", "killed", "no_result"}
)
"""Outcomes that another attempt may change: before it, a budget that is used up opens a gate."""

_MEANINGS: Mapping[AgentOutcome, str] = {
    "agent_error": "failed",
    "api_auth": "was refused by its model service: the credential is missing, wrong or may not do this",
    "api_rate": "was sent away by its model service: too many calls, or a limit is used up",
    "api_5xx": "could not get an answer from its model service",
    "bad_input": "was given something that it, or its model, does not take",
    "budget": "was stopped: its budget is used up",
    "turn_limit": "was stopped after its number of turns, before it was done",
    "killed": "was killed",
    "no_result": "ended without saying how",
}
_NEXT: Mapping[AgentOutcome, str] = {
    "api_auth": "Log in with the agent itself, or set the variable that holds its key; see `agentos doctor`.",
    "api_rate": "Resume later, or give the task `retries`.",
    "budget": "Resume the run: it asks whether as much again may be spent.",
    "turn_limit": "Give the task more `max_turns` and resume: it goes on where it was stopped.",
}


def prompt_for(
    prompt: str,
    *,
    earlier: AgentSession | None = None,
    how: OnResume = "continue",
    known: bool = True,
    agent: str = "",
    schema: Mapping[str, Any] | None = None,
) -> str:
    """What the agent reads; `earlier`: the session it goes on with, `how` it does; `known`: whether it is still there;
    `agent`: who reads it, where that may be another than had the session.

    The task is in it even then: not every session has survived. Only one that has just ended is told no more than why
    its work was not accepted.
    """
    asked = f"{prompt}{_BY_SCHEMA}{json.dumps(schema)}\n" if schema is not None else prompt
    if earlier is None:
        return asked
    rejected = earlier.ended == "rejected" and how == "continue"
    if rejected and known:
        return _REJECTED.format(feedback=earlier.feedback)
    said = _SAID_BEFORE.format(feedback=earlier.feedback) if earlier.feedback else ""
    if agent and agent != earlier.agent:
        return f"{_TAKES_OVER}{asked}{said}"
    return f"{_FORKED if how == 'fork' else _GOES_ON}{asked}{said}"


def failure_text(agent: str, word: AgentOutcome, why: str) -> tuple[str, str]:
    """How an attempt failed, for people; and the next step."""
    text = f"{agent} {_MEANINGS.get(word, 'failed')} ({word})"
    return f"{text}: {why}" if why else text, _NEXT.get(word, "")


COOL_DOWN_S = 30.0
"""After a 429 of an agent that does not say how long to wait."""
REST_S = 60.0
"""A credential that rests for longer is waited for without a slot."""
_LAST_STAMP = 1e11


class _TryResult(NamedTuple):
    verdict: AgentVerdict
    session: str
    model: str
    used: Usage
    warnings: tuple[str, ...]
    cut_off: bool


class AgentPerformer:
    """Runs an agent in a process group of its own. Success is what its last event says, and the task's `verify`."""

    def __init__(self, supervisor: Supervisor, limiter: Limiter) -> None:
        self._supervisor = supervisor
        self._limiter = limiter
        self._shell = ShellPerformer(supervisor)

    async def __call__(self, spec: AttemptSpec, host: AttemptHost) -> AttemptResult:
        began = perf_counter()
        folder: PrivateFolder | None = None
        try:
            folder = private_folder(spec)
            errand = await prepare_assignment(spec, host, folder.path)
            tried, notes = await self._run_agent(errand, host)
            output, verified = await self._output(errand, tried, host)
        except AttemptFailed as failed:
            return failure_outcome(failed, began)
        except asyncio.CancelledError:  # while nothing ran: waiting for a slot, or looking for the session
            failure = plain_failure(TaskCancelledError("the attempt was cancelled before its agent was at work"))
            return failure_outcome(AttemptFailed(failure, retryable=False, cancelled=True), began)
        finally:
            if folder is not None:
                folder.remove()
        warnings = notes + tried.warnings
        spent_ms = milliseconds_since(began)
        return AttemptResult(output=Raw(output), warnings=warnings, verified=verified, execution_time_ms=spent_ms)

    async def _run_agent(self, errand: Assignment, host: AttemptHost) -> tuple[_TryResult, tuple[str, ...]]:
        """One try; a second one, in a new session, where the session to go on with is gone."""
        notes: tuple[str, ...] = ()
        earlier = await find_earlier_session(errand)
        before = errand.spec.session
        if before is not None and before.agent != errand.work.agent:
            notes = (f"{errand.work.agent} goes on where {before.agent} stopped, in a new session",)
        elif before is not None and not earlier.id:
            notes = (f"the session of {errand.work.agent} that was interrupted is not known: a new one was begun",)
        tried = await self._try(errand, host, earlier)
        if tried.verdict.session_lost:
            notes = (f"{errand.work.agent} could not use its session ({tried.verdict.why}): a new one was begun",)
            tried = await self._try(errand, host, EarlierSession())
        verdict = tried.verdict
        if verdict.outcome != "ok":
            if not tried.cut_off:
                await host.capture_turn()  # it knows all that it did: it goes on from here
            raise _agent_failure(
                errand.work.agent,
                verdict.outcome,
                verdict.why,
                notes + tried.warnings,
                cut_off=tried.cut_off,
                limit=_known_limit(errand, verdict),
                # Without a cost on record the budget would seem as full as before, for ever.
                paused=verdict.outcome == "budget" and (host.allowance().used_up or tried.used.cost_usd > 0),
            )
        return tried, notes

    # --- one try ---------------------------------------------------------------------------------------------------

    async def _try(self, errand: Assignment, host: AttemptHost, earlier: EarlierSession) -> _TryResult:
        """Waits for a slot, then lets the agent work. Its session is durable before it starts, where it is known."""
        spec, traits = errand.spec, errand.agent.TRAITS
        self._wait_elsewhere(errand, REST_S)
        try:
            async with self._limiter.call(
                errand.credential, spec.models.limits_of(errand.credential), lambda why: host.output("progress", why)
            ) as call:
                session = await _pay_for_missed(errand, host, _session_for(errand, earlier), earlier.id)
                put_off_if_used_up(host)
                asked = errand.agent.call(errand.ask(host, session=session.title or session.id, goes_on=earlier.name))
                schema = None if traits.takes_schema else errand.work.schema
                prompt = prompt_for(
                    errand.work.prompt,
                    earlier=spec.session,
                    how=errand.work.on_resume,
                    known=bool(earlier.id),
                    agent=errand.work.agent,
                    schema=schema,
                )
                launch = Launch(
                    argv=(errand.program, *asked.argv[1:]),
                    env={**asked.env, **errand.env},
                    cwd=errand.cwd,
                    stdin=errand.write_files(prompt, asked),
                )
                argv, launch = launch.argv, await asyncio.to_thread(errand.enclose, launch)
                digest = blake2b(prompt.encode(errors="surrogatepass"), digest_size=16).hexdigest()
                session = msgspec.structs.replace(session, id=session.id if traits.names_session else "", prompt=digest)
                began = {
                    "attempt": spec.attempt_id,
                    "session": msgspec.to_builtins(session),
                    "cwd": os.path.realpath(errand.cwd),  # noqa: ASYNC240 (a moment)
                    "argv": list(argv),
                    "sandbox": spec.definition.sandbox,
                    "env": sorted(launch.env),  # names of variables, never their values
                    "prompt": prompt,
                    "schema": errand.work.schema,
                    "timeout_s": errand.time.left_s,
                    "budget": msgspec.to_builtins(spec.definition.budget),
                }
                _write_log(spec, {"agent_started": began})
                if session.id or session.title:
                    await host.record_session(session)
                return await self._run_program(errand, host, launch, session, call)
        except CoolingDownError as error:
            self._wait_elsewhere(errand, 0.0)
            raise AttemptFailed(plain_failure(error), retryable=False) from None

    def _wait_elsewhere(self, errand: Assignment, most_s: float) -> None:
        """End the attempt at the limit that others with this credential ran into, if that lasts longer than so."""
        rest_s = self._limiter.rest_s(errand.credential) if errand.agent.TRAITS.program else 0.0
        if rest_s > most_s and errand.spec.definition.on_limit.act != "fail":
            why = AttemptError(f"{errand.work.agent} was not started: a limit of its model service is used up")
            until = datetime.now(UTC) + timedelta(seconds=rest_s)
            raise AttemptFailed(plain_failure(why), put_off=True, limit=LimitReached(until=until))

    async def _run_program(
        self, errand: Assignment, host: AttemptHost, launch: Launch, session: AgentSession, call: CallSlot
    ) -> _TryResult:
        spec, traits = errand.spec, errand.agent.TRAITS
        err = capture_of("stderr", spec, host)

        async def record_session(id: str) -> None:
            if id != session.id:
                await host.record_session(msgspec.structs.replace(session, id=id))

        follower = Follower(
            errand.agent.reader(),
            host,
            masker=spec.masker,
            log=spec.log,
            agent=errand.work.agent,
            provider=traits.provider,
            asked_model=errand.work.model,
            on_session=record_session,
            max_turns=None if traits.counts_turns else errand.work.max_turns,
            captures=changes_files(spec.definition) or spec.worktree is not None,
            priced=errand.add_cost,
            tokens=SessionTokens(traits, errand.env, calls=session.used.calls).read if traits.tokens_of else None,
            counted=session.used,
        )
        writing = asyncio.create_task(follower.write_down())
        writing.add_done_callback(follower.end_if_failed)
        try:
            with errand.time as left_s:
                ending = await self._supervisor.run(
                    launch,
                    host,
                    mark=spec.mark,
                    feeds=(follower.feed, err.feed),
                    timeout_s=left_s,
                    stop=follower.stop,
                    on_hold=follower.hold_with,
                    leader_first=bool(traits.program),
                )
            follower.close()
            err.close()
            await writing
        finally:
            writing.cancel()
        left = errand.read_output_files()
        said = AgentExit(ending.status, err.last_lines(), left, stopped=ending.why == "stopped")
        verdict = _final_verdict(follower, ending, said)
        await follower.settle(verdict, whole_session=traits.counts_session)
        call.record_cost(follower.used.cost_usd)
        model = follower.model or errand.work.model
        if verdict.cost_usd is None:
            warnings = (*ending.warnings, *errand.cost_warnings(follower.used, model, host))
            if ending.why != "exited" and follower.turns and not follower.used.tokens:
                warnings += (
                    f"{errand.work.agent} tells only at its end what it used: nobody knows what its {follower.turns} "
                    "turns did, and sums are too low by that",
                )
            ending = msgspec.structs.replace(ending, warnings=warnings)
        if verdict.outcome == "api_rate" and (rest_s := _rest_s(errand, verdict)):
            call.cool_down(rest_s)
        await _log_end(errand, ending, verdict, follower.session or session.id)
        refuse_cut_short(ending, last_words(None, err), spec.definition.timeout_s)
        cut_off = ending.why == "stopped" or was_ended(ending.status)
        return _TryResult(verdict, follower.session or session.id, model, follower.used, ending.warnings, cut_off)

    # --- what it gave ----------------------------------------------------------------------------------------------

    async def _output(
        self, errand: Assignment, tried: _TryResult, host: AttemptHost
    ) -> tuple[bytes, Verification | None]:
        verdict = tried.verdict
        output: dict[str, Any] = {"text": verdict.text}
        if errand.schema is not None:
            answer = json_text(verdict.text, in_prose=True) if verdict.json is None else json.dumps(verdict.json)
            try:
                output["json"] = errand.schema.read(answer)
            except ModelCallError as error:
                await host.capture_turn()
                raise _agent_failure(errand.work.agent, "agent_error", error.message, agent="rejected") from None
        output |= {
            "session": tried.session,
            "agent": errand.work.agent,
            "model": tried.model,
            "turns": verdict.turns,
            "usage": msgspec.structs.asdict(tried.used),
            "denials": list(verdict.denials),
        }
        if not errand.spec.verify:
            return encode_result(output), None
        said, verified = await self._verify(errand, host)
        several = not isinstance(errand.work.verify, str) and isinstance(errand.work.verify[0], VerifyCommand)
        return encode_result({**output, "verify": said if several else said[0]}), verified

    async def _verify(self, errand: Assignment, host: AttemptHost) -> tuple[list[Any], Verification]:
        """What each command said, and on which files. AttemptFailed at the first that fails; none is run after it."""
        commands, said = errand.spec.verify, list[Any]()
        checks: tuple[VerifyCheck, ...] = ()
        saw = await host.capture_turn()  # what `verify` does to files is no work of the agent's
        for number, one in enumerate(commands, start=1):
            with errand.time as left_s:
                definition = msgspec.structs.replace(errand.spec.definition, timeout_s=left_s, output="")
                env = {**errand.spec.env, **one.env}
                spec = msgspec.structs.replace(errand.spec, command=one.command, definition=definition, env=env)
                outcome, end = await self._shell.check(spec, host)
            if outcome.cancelled and outcome.error is not None:
                raise AttemptFailed(outcome.error, retryable=False, cancelled=True, warnings=outcome.warnings)
            # After the last of them the files are captured anyway, as those that the attempt left.
            is_last = outcome.error is not None or number == len(commands)
            tree = "" if is_last else await host.current_tree()
            seconds = round(outcome.execution_time_ms / 1000, 3)
            checks += (VerifyCheck(command=one.written, seconds=seconds, saw=saw, tree=tree, **end._asdict()),)
            saw = tree
            if outcome.error is not None:
                not_run = tuple(left.written for left in commands[number:])
                raise _agent_failure(
                    errand.work.agent,
                    "agent_error",
                    _rejection(one.written, number, not_run, outcome.error.text),
                    outcome.warnings,
                    cut_off=outcome.cut_off,
                    agent="rejected",
                    verified=Verification(checks=checks, not_run=not_run),
                )
            said.append({"command": one.written, **msgspec.json.decode(outcome.output)})
        return said, Verification(checks=checks)


def _rejection(command: str, number: int, not_run: tuple[str, ...], why: str) -> str:
    """Why the agent's work is not accepted: which command of `verify` says so, where there are several."""
    total = number + len(not_run)
    which = (
        f"command {number} of {total}, `{shorten_command(command)}`, says otherwise" if total > 1 else "says otherwise"
    )
    left = f" (not run after it: {', '.join(f'`{shorten_command(one)}`' for one in not_run)})" if not_run else ""
    return f"it says that it is done, but `verify` {which}{left}: {why}"


def _session_for(errand: Assignment, earlier: EarlierSession) -> AgentSession:
    """The session of a try. Without a fork, the one to go on with stays the one it was."""
    traits, before = errand.agent.TRAITS, errand.spec.session
    own = str(uuid.uuid4())  # the fourth version: not every agent takes others
    return AgentSession(
        agent=errand.work.agent,
        id=own if traits.forks or not earlier.id else earlier.id,
        title=f"{errand.spec.attempt_id} {own[:8]}" if traits.titled and not earlier.id else "",
        program=errand.program,
        version=errand.version,
        forked_from=earlier.id if traits.forks else "",
        cwd=errand.place,
        feedback=before.feedback if before is not None else "",
        used=before.used if before is not None and earlier.id else NO_USAGE,
    )


async def _pay_for_missed(errand: Assignment, host: AttemptHost, session: AgentSession, earlier: str) -> AgentSession:
    """Write down what was used in the session that it goes on with, and could not be written down when that ended."""
    total = await asyncio.to_thread(SessionTokens(errand.agent.TRAITS, errand.env).read, earlier) if earlier else None
    missed = total.beyond(session.used) if total is not None else NO_USAGE
    if missed == NO_USAGE:
        return session
    await host.record_usage(errand.add_cost(missed, errand.work.model))
    return msgspec.structs.replace(session, used=session.used + missed)


def _final_verdict(follower: Follower, ending: Ending, ended: AgentExit) -> AgentVerdict:
    verdict = follower.verdict(ended)
    if ending.why == "stopped" and verdict.outcome != "ok":  # its last word came before it was gone: that counts
        return msgspec.structs.replace(verdict, outcome=follower.stop.result(), why="")
    if ending.why == "timeout":
        return msgspec.structs.replace(verdict, outcome="timeout")
    if ending.why == "cancelled" or (verdict.outcome != "ok" and (ending.status or 0) < 0):
        return msgspec.structs.replace(verdict, outcome="killed", why=f"its process {describe_status(ending.status)}")
    if verdict.outcome != "ok" and not verdict.why:
        return msgspec.structs.replace(verdict, why=f"its process {describe_status(ending.status)}")
    return verdict


def _agent_failure(
    name: str,
    word: AgentOutcome,
    why: str,
    warnings: tuple[str, ...] = (),
    *,
    cut_off: bool = False,
    paused: bool = False,
    agent: AgentEnd = "",
    limit: LimitReached | None = None,
    verified: Verification | None = None,
) -> AttemptFailed:
    text, next_step = failure_text(name, word, why)
    failure = plain_failure(AgentFailed(text, outcome=word, next_step=next_step))
    return AttemptFailed(
        failure,
        retryable=word in RETRYABLE,
        paused=paused,
        cut_off=cut_off,
        agent=agent,
        limit=limit,
        warnings=warnings,
        verified=verified,
    )


def _known_limit(errand: Assignment, verdict: AgentVerdict) -> LimitReached | None:
    """As `_limit_of`; a program of the user's that asks to be tried later, and does not say when, just fails."""
    limit = _limit_of(verdict)
    return limit if limit is None or errand.agent.TRAITS.program or limit.until is not None else None


def _rest_s(errand: Assignment, verdict: AgentVerdict) -> float:
    """How long nobody calls with the agent's credential; a limit of one model says nothing about others."""
    limit = _limit_of(verdict)
    if limit is None or limit.until is None:
        return verdict.retry_after_s or COOL_DOWN_S
    if errand.spec.definition.on_limit.act == "switch":
        return 0.0
    return max(0.0, (limit.until - datetime.now(UTC)).total_seconds())


def _limit_of(verdict: AgentVerdict) -> LimitReached | None:
    """The limit that the agent ran into, with the moment at which it is over where that is known; None: into none."""
    if verdict.outcome != "api_rate":
        return None
    now = datetime.now(UTC).astimezone()
    if verdict.resets_at is not None and verdict.resets_at < _LAST_STAMP:
        return LimitReached(until=believable(datetime.fromtimestamp(verdict.resets_at, UTC), now))
    if verdict.retry_after_s is not None:
        return LimitReached(until=believable(now + timedelta(seconds=min(verdict.retry_after_s, 1e9)), now))
    return LimitReached(until=reset_time(verdict.why, now))


def _write_log(spec: AttemptSpec, value: dict[str, Any]) -> None:
    """What the log of an attempt holds beside the agent's own stream."""
    if spec.log is not None:
        masked, _ = spec.masker.value_and_names(value)
        spec.log.write("progress", json.dumps(masked, ensure_ascii=False, default=str).encode(errors="replace") + b"\n")


async def _log_end(errand: Assignment, ending: Ending, verdict: AgentVerdict, session: str) -> None:
    """However it ended, with the agent's transcript: what an agent did is asked about most where it failed."""
    spec, copied = errand.spec, None
    if spec.log is not None:
        found = await asyncio.to_thread(transcript_of, errand.agent.TRAITS.transcript, session, errand.env)
        copied = await asyncio.to_thread(copy_transcript, found, spec.log, spec.masker) if found else None
    transcript = msgspec.to_builtins(copied)
    ended = {"exit_code": ending.status, **msgspec.to_builtins(verdict), "transcript": transcript}
    _write_log(spec, {"agent_ended": ended})
