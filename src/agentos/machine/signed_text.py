"""What somebody signs who answers a gate: one text for one answer to one question, about one state of things.

Whoever prints it, makes the signature, verifies it or looks at it years later works it out from the journal, the same
to the byte.
"""

from __future__ import annotations

import json
from typing import Any

from agentos.ids import GateId
from agentos.machine.commands import ApprovalResponse
from agentos.machine.facts.facts import Facts
from agentos.values import without_surrogates

NAMESPACE = "agentos-gate"
"""The namespace of these signatures: one that was made for anything else (a commit, a mail) is none."""
FORMAT = 1


def signed_text(facts: Facts, answer: ApprovalResponse) -> str:
    """The text that a signature of this answer is over. KeyError where there is no such gate."""
    gate = facts.gates[GateId(answer.gate_id)]
    opened = gate.opened
    fields: dict[str, Any] = {
        NAMESPACE: FORMAT,
        "run": facts.workflow_id,
        "epoch": gate.epoch,
        "gate": opened.gate_id,
        "task": opened.task_id,
        "question": opened.question,
        "choices": opened.choices,
        "file": opened.file,
        "shown": opened.shown,
        "inputs": opened.inputs,
        "files": None if gate.covers is None else {path: gate.covers[path] for path in sorted(gate.covers)},
        "tree": facts.files.tree if facts.files is not None else "",
        "signers": facts.signers.commit if facts.signers is not None else "",
        "answer": "approve" if answer.approved else "reject",
        "choice": answer.choice,
        "reason": answer.reason,
    }
    # ASCII alone: what is printed to be signed moves no cursor, and no encoding makes two texts of one.
    return json.dumps(without_surrogates(fields), indent=2) + "\n"


def is_about(text: str, facts: Facts, answer: ApprovalResponse) -> bool:
    """Whether a signed text is about this answer, once it has been given: files may have changed since."""
    try:
        said, meant = json.loads(text), json.loads(signed_text(facts, answer))
        return bool({**said, **_SINCE} == {**meant, **_SINCE})
    except (ValueError, TypeError):
        return False


_SINCE = {"files": None, "tree": ""}
