"""Where an attempt's work enters the engine, secrets stay behind: lines, results, messages, errors."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

import msgspec
from msgspec import Raw

from agentos.machine.events import NOTHING, TaskFailure, Verification
from agentos.machine.inputs import AttemptResult
from agentos.secrets import Masker
from agentos.tasks.attempt import AttemptHost, AttemptSpec
from agentos.tasks.failures import LEFT_OUT
from agentos.tasks.process.output_capture import KEEP_BYTES, Capture
from agentos.values import TAG, decode_value, encode_value

_TAG_BYTES = TAG.encode()
_LEFT_OUT = re.compile(LEFT_OUT.format(r"\d+").replace("[", r"\[").replace("]", r"\]"))


def capture_of(
    stream: Literal["stdout", "stderr"], spec: AttemptSpec, host: AttemptHost, *, head: int = KEEP_BYTES
) -> Capture:
    """What keeps and shows one stream of an attempt's child, masked."""
    log = spec.log
    return Capture(
        lambda line: host.output(stream, line),
        head=head,
        masker=spec.masker,
        log=None if log is None else lambda data: log.write(stream, data),
    )


def masked_outcome(outcome: AttemptResult, task_id: str, masker: Masker) -> AttemptResult:
    """The outcome as it may be stored: no secret in it, and a warning where that changed the task's result."""
    if not masker:
        return outcome
    if outcome.verified is not None:
        outcome = msgspec.structs.replace(outcome, verified=_masked_verification(outcome.verified, masker))
    found: set[str] = set()
    output = _masked_raw(outcome.output, masker, found)
    messages = _masked_raw(outcome.messages, masker, found)
    context = _masked_raw(outcome.context, masker, found)
    if outcome.error is None and not found and not outcome.injected and not outcome.warnings:
        return outcome
    injected = []
    for task in outcome.injected:
        masked, names = masker.value_and_names([*task])
        found.update(names)
        injected.append((masked[0], masked[1]) if names else task)
    all_masks = " ".join(masker.mask_of(name) for name in sorted(found))
    return msgspec.structs.replace(
        outcome,
        output=output if output is not None else Raw(encode_value(all_masks)),
        messages=messages if messages is not None else NOTHING,
        context=context if context is not None else NOTHING,
        injected=tuple(injected),
        error=masked_failure(outcome.error, masker) if outcome.error is not None else None,
        warnings=(*map(masker.text, outcome.warnings), *result_warning(task_id, found)),
    )


def result_warning(task_id: str, names: Iterable[str]) -> tuple[str, ...]:
    """What is told where masking changed what a task gave."""
    listed = ", ".join(sorted(names))
    if not listed:
        return ()
    return (
        f"the result of {task_id!r} held the value of {listed}, which was masked before it was stored: "
        "tasks that use the result get the mask",
    )


def masked_failure(error: TaskFailure, masker: Masker) -> TaskFailure:
    return TaskFailure(
        type=masker.text(error.type),
        text=masked_text(error.text, masker),
        traceback=masked_text(error.traceback, masker),
    )


def _masked_verification(verified: Verification, masker: Masker) -> Verification:
    checks = (
        msgspec.structs.replace(check, command=masker.text(check.command), said=masked_text(check.said, masker))
        for check in verified.checks
    )
    not_run = tuple(map(masker.text, verified.not_run))
    return msgspec.structs.replace(verified, checks=tuple(checks), not_run=not_run)


def masked_text(text: str, masker: Masker) -> str:
    """A text whose middle may have been left out: what is left of a secret at the cut goes too."""
    if not masker:
        return text
    masked = masker.text(text)
    cut = _LEFT_OUT.search(masked)
    if cut is None:
        return masked
    return masker.cut_end(masked[: cut.start()]) + cut[0] + masker.cut_start(masked[cut.end() :])


def _masked_raw(raw: Raw, masker: Masker, found: set[str]) -> Raw | None:
    """The stored form of a value without secrets; None where nothing of it can be kept."""
    if raw is NOTHING:
        return raw
    data = bytes(raw)
    if not masker.may_be_in(data) and _TAG_BYTES not in data:
        return raw
    value, names = masker.value_and_names(decode_value(data))
    encoded = encode_value(value) if names else data
    # Two parts of a value side by side may spell a secret together with the signs between them.
    left = masker.names_in(encoded)
    found.update(names, left)
    if left:
        return None
    return Raw(encoded) if names else raw
