"""What the tasks do that call nobody: they make prompts, read answers, write artefacts, and say what follows.

Each is a plain function of what the journal holds; done again after a crash it gives the same and writes the same.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from hashlib import sha256
from typing import Any
from uuid import uuid4

import msgspec

from agentos import Context
from agentos.exceptions import AttemptError
from agentos.workflows.issue import lineage, prompts
from agentos.workflows.issue.filing import Intent, intent_of
from agentos.workflows.issue.needed import need_of
from agentos.workflows.issue.roles import Filer, Role, parse_filer, parse_role
from agentos.workflows.issue.verdicts import UnreadableVerdict, as_list, complaint_of, read_verdict

Told = Mapping[str, Any]
"""The output of another task."""


def load(brief: str, digest: str, name: str, ctx: Context) -> dict[str, str]:
    """The brief, as the run keeps it from here on."""
    data = (ctx.root / brief).read_bytes()
    if digest_of(data) != digest:
        raise AttemptError(
            f"{brief} changed while the run was about to read it",
            next_step=f"Begin anew: agentos issue --brief {shlex.quote(brief)} --anew",
        )
    text = data.decode()
    return {"text": text, "file": lineage.write_artefact(ctx.root, name, 1, "brief.md", text)}


def digest_of(brief: bytes) -> str:
    return sha256(brief).hexdigest()[:16]


def preflight(drafter: str, reviewer: str, filer: str, ctx: Context) -> list[str]:
    """What is needed and is there, before anything is paid for. Fails with all that is missing."""
    roles: dict[str, Role | Filer] = {
        "drafter": parse_role(drafter, "--drafter"),
        "reviewer": parse_role(reviewer, "--reviewer"),
        "filer": parse_filer(filer),
    }
    needed = {what: need for what, role in roles.items() if (need := need_of(role, ctx.root))}
    missing = [f"{what}: {need.what}" for what, need in needed.items() if not need.is_there]
    if missing:
        step = (
            "Nothing was spent. Mend that, then resume; or begin anew with others: --drafter, --reviewer, --file-with."
        )
        raise AttemptError(f"missing: {'; '.join(missing)}", next_step=step)
    return [f"{what}: {need.what}" for what, need in needed.items()]


# --- drafting -----------------------------------------------------------------------------------------------------


def ask_for_draft(brief: str, last: Told | None) -> dict[str, Any]:
    """The prompt of this round's draft. `last` is how the round before ended."""
    before = last or {"round": 0, "number": 1, "text": "", "feedback": ""}
    text = prompts.drafting_prompt(brief, before["text"], before["feedback"])
    return {"text": text, "round": before["round"] + 1, "number": before["number"]}


def keep_draft(answer: Any, asked: Told, name: str, ctx: Context) -> dict[str, Any]:
    """The draft in the drafter's answer, and in a file that people may change."""
    text = _draft_in(text_of(answer))
    number = asked["number"] + 1
    file = lineage.write_artefact(ctx.root, name, number, "draft.md", text)
    return {"text": text, "file": file, "round": asked["round"], "number": number}


def text_of(answer: Any) -> str:
    """The text of whatever a drafter or reviewer gives: a program its stdout, agents and models a map with it."""
    if isinstance(answer, Mapping) and isinstance(text := answer.get("text"), str):
        return text
    return answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)


def _draft_in(answer: str) -> str:
    """The answer from its first heading on: models like to say a word before."""
    heading = re.search(r"^# ", answer, re.MULTILINE)
    return answer[heading.start() :].strip() if heading else answer.strip()


def take_draft(draft: Told, brief: str, look: Told | None, ctx: Context) -> dict[str, Any]:
    """The draft as it is now, changed by hand or not, and whether it goes to the reviewer."""
    text = lineage.read_artefact(ctx.root, draft["file"], draft["text"]).strip()
    said = (look or {}).get("reason", "")
    send = bool(text) and (look or {}).get("choice", "send") == "send"
    if not text:
        said = said or "The draft was emptied by hand: write it anew."
    prompt = prompts.reviewing_prompt(brief, text) if send else ""
    return {"send": send, "text": text, "said": said, "prompt": prompt, "edited": text != draft["text"].strip()}


# --- the verdict --------------------------------------------------------------------------------------------------


def read_review(answer: Any) -> dict[str, Any]:
    """The verdict in the reviewer's answer; `readable` is false where there is none."""
    given = answer
    if isinstance(answer, Mapping) and "verdict" not in answer:
        given = answer.get("json") or text_of(answer)
    try:
        return {"readable": True, "why": "", "verdict": msgspec.to_builtins(read_verdict(given))}
    except UnreadableVerdict as error:
        return {"readable": False, "why": str(error), "verdict": None, "answer": text_of(answer)[:20_000]}


def judge(
    first: Told, again: Any, draft: Told, last: Told | None, name: str, max_rounds: int, always_ask: bool, ctx: Context
) -> dict[str, Any]:
    """The verdict that counts, in a file, and why a human is to be asked about it, if at all."""
    read = first if first["readable"] else read_review(again)
    number = draft["number"] + 1
    if not read["readable"]:
        text = f"# Unreadable\n\n{read['why']}\n\n```text\n{read['answer']}\n```\n"
        file = lineage.write_artefact(ctx.root, name, number, "verdict.md", text)
        ask = "The reviewer gave no readable verdict, twice."
        nothing = {"verdict": "", "summary": "", "changes": [], "complaint": ""}
        return {**nothing, "ask": ask, "number": number, "file": file}
    verdict = read_verdict(read["verdict"])
    text = f"# {verdict.verdict.capitalize()}\n\n{verdict.summary}\n\n{as_list(verdict.changes)}".rstrip()
    file = lineage.write_artefact(ctx.root, name, number, "verdict.md", text)
    complaint = complaint_of(verdict)
    why = _why_ask(verdict.verdict, complaint, draft["round"], last, max_rounds, always_ask)
    return {
        "verdict": verdict.verdict,
        "summary": verdict.summary,
        "changes": list(verdict.changes),
        "complaint": complaint,
        "ask": f"{why} {verdict.summary}".strip() if why else "",
        "number": number,
        "file": file,
    }


def _why_ask(verdict: str, complaint: str, round: int, last: Told | None, max_rounds: int, always: bool) -> str:
    if verdict == "discuss":
        return "The reviewer wants a human to decide."
    if verdict == "revise" and last is not None and last["complaint"] == complaint:
        return "The reviewer asks for the same as in the round before."
    if verdict == "revise" and round >= max_rounds:
        return f"The reviewer is not content after {'1 round' if round == 1 else f'{round} rounds'}."
    return f"The reviewer says {verdict}." if always else ""


def conclude(draft: Told, taken: Told, verdict: Told | None, decided: Told | None, name: str, ctx: Context) -> Told:
    """How the round ended: done, or what the next draft has to mind. Human words are kept in a file."""
    if not taken["send"]:
        verdict = decided = None  # what these tasks last gave is of a round before
    elif verdict is not None and not verdict["ask"]:
        decided = None
    said = "\n\n".join(filter(None, (taken["said"], (decided or {}).get("reason"))))
    number = (verdict or draft)["number"]
    if said:
        number += 1
        lineage.write_artefact(ctx.root, name, number, "feedback.md", said)
    done = taken["send"] and (decided["choice"] == "accept" if decided else (verdict or {}).get("verdict") == "approve")
    text = lineage.read_artefact(ctx.root, draft["file"], taken["text"]).strip() if decided else taken["text"]
    feedback = prompts.feedback_of((verdict or {}).get("summary", ""), (verdict or {}).get("changes", []), said)
    return {
        "done": bool(done),
        "round": draft["round"],
        "number": number,
        "text": text or taken["text"],
        "feedback": "" if done else feedback,
        "complaint": (verdict or {}).get("complaint", ""),
    }


# --- the issue ----------------------------------------------------------------------------------------------------


def intend(outcome: Told) -> Intent:
    """What is going to be filed, with a marker of its own: durable before anything is."""
    return intent_of(outcome["text"], f"agentos-issue:{uuid4()}")


def keep_filed(filed: Told, intent: Intent, outcome: Told, brief: str, name: str, ctx: Context) -> dict[str, Any]:
    """The record of the issue, and everything moved to where filed ones lie."""
    record = {
        "url": filed["url"],
        "number": filed["number"],
        "title": intent.title,
        "labels": list(intent.labels),
        "filed_at": filed["filed_at"],
        "brief": brief,
        "rounds": outcome["round"],
        "run": ctx.workflow_id,
    }
    text = json.dumps(record, indent=2, ensure_ascii=False)
    last = f"{outcome['number'] + 1:03}-filed.json"
    folder = lineage.move_to_done(ctx.root, name, filed["number"], last, text)
    return {"url": filed["url"], "number": filed["number"], "folder": folder, "rounds": outcome["round"]}


def keep_unfiled(intent: Intent, outcome: Told, name: str, ctx: Context) -> dict[str, Any]:
    """With `--file-with none`: the accepted issue as a file, for somebody to file by hand."""
    text = f"# {intent.title}\n\n{intent.body}"
    file = lineage.write_artefact(ctx.root, name, outcome["number"] + 1, "issue.md", text)
    folder = str(lineage.active_folder(name))
    return {"url": "", "number": "", "folder": folder, "file": file, "rounds": outcome["round"]}
