"""What drafter and reviewer are told. A run keeps the digest: with other prompts than it began with, it asks."""

from __future__ import annotations

from hashlib import sha256

from agentos.workflows.issue.verdicts import as_list

DRAFTING = """\
Write an issue for this project's tracker from the brief below.

Answer with the issue in Markdown and nothing else:
- a first line `# ` and a title that says what changes for whom;
- what is wanted and why, for a reader who does not know the brief;
- `## Acceptance criteria`: a list of what must hold, each of which somebody can check;
- `## Out of scope`, where something near by is not meant;
- a last line `Labels: ` and one to three labels with commas between them.

Invent no facts. Where the brief leaves something open that matters, say so under `## Open questions`.
"""
REVIEWING = """\
Review the draft of an issue below against the brief it was made from.

It is good if somebody who does not know the brief can work from it: the aim is clear, each acceptance criterion can be
checked, nothing of the brief is lost, nothing is made up, and nothing in it is unsafe.

Answer with one JSON object and nothing else:
{"verdict": "approve" | "revise" | "discuss", "summary": "one or two sentences", "changes": ["what to change", ...]}

- approve: it can be filed as it is.
- revise: the drafter can mend it; say in `changes` how.
- discuss: a human has to decide something first; say in `summary` what.
"""
AGAIN = "Your last answer could not be read as that JSON object: {why}\nAnswer once more, with the JSON object alone."


def prompts_digest() -> str:
    """Changes whenever a prompt does."""
    return sha256("\0".join((DRAFTING, REVIEWING, AGAIN)).encode()).hexdigest()[:16]


def drafting_prompt(brief: str, draft: str, feedback: str) -> str:
    """The first draft, or the next one: with the last draft and what was said about it, if only by the human."""
    parts = [DRAFTING, _quote("brief", brief)]
    if draft:
        parts.append(_quote("last-draft", draft))
    if feedback:
        parts += [_quote("feedback", feedback), "Write the whole issue anew, with what the feedback asks for."]
    return "\n".join(parts)


def reviewing_prompt(brief: str, draft: str) -> str:
    return "\n".join((REVIEWING, _quote("brief", brief), _quote("draft", draft)))


def feedback_of(summary: str, changes: list[str], said: str) -> str:
    """What the drafter is told about its last draft: the human's word first."""
    review = "\n".join(part for part in (summary, as_list(changes)) if part)
    return "\n\n".join(part for part in (said, review) if part)


def _quote(what: str, text: str) -> str:
    return f"<{what}>\n{text.strip()}\n</{what}>\n"
