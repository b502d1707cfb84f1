"""The parts of the issue workflow by themselves: verdicts, names, titles, files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest
from msgspec.structs import replace

from agentos.exceptions import AttemptError, RunRefusedError
from agentos.workflows.issue import lineage
from agentos.workflows.issue.briefs import Brief, IssueRun, IssueSettings, changes_since, read_brief, slug
from agentos.workflows.issue.filing import intent_of, number_in, title_in
from agentos.workflows.issue.prompts import prompts_digest
from agentos.workflows.issue.roles import Filer, Role, parse_filer, parse_role
from agentos.workflows.issue.verdicts import SCHEMA, UnreadableVerdict, Verdict, complaint_of, read_verdict

APPROVE = '{"verdict": "approve", "summary": "ok", "changes": []}'

# --- verdicts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [APPROVE, f" {APPROVE}\n", f"```json\n{APPROVE}\n```", f"```\n{APPROVE}\n```\n"])
def test_a_verdict_is_one_json_object(answer: str) -> None:
    assert read_verdict(answer) == Verdict(verdict="approve", summary="ok")


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "approve",
        "APPROVED",
        "- [x] **APPROVED**\n- [ ] **REVISE**",
        f"I would say {APPROVE}",
        f"{APPROVE} {APPROVE}",
        '{"verdict": "Approve", "summary": "", "changes": []}',
        '{"verdict": ["approve"], "summary": "", "changes": []}',
        '{"summary": "approve", "changes": []}',
        '{"verdict": "approve", "changes": []}',
        '{"verdict": "approve", "summary": "", "changes": [], "but": "not really"}',
        '{"verdict": "revise", "summary": "hm", "changes": []}',
        '{"verdict": "revise", "summary": "hm", "changes": [""]}',
        "[" * 10_000,
        '{"verdict": "approve", "summary": "\\ud800"}',
        None,
        7,
        ["approve"],
        {"verdict": "rejected", "summary": "", "changes": []},
    ],
)
def test_anything_else_says_nothing(answer: Any) -> None:
    with pytest.raises(UnreadableVerdict):
        read_verdict(answer)


def test_the_schema_that_models_are_given_takes_what_is_read() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    validator = jsonschema.Draft202012Validator(SCHEMA)
    assert validator.is_valid({"verdict": "revise", "summary": "hm", "changes": ["x"]})
    assert not validator.is_valid({"verdict": "reject", "summary": "", "changes": []})


def test_the_same_complaint_in_other_clothes() -> None:
    def complaint(*changes: str, verdict: Any = "revise") -> str:
        return complaint_of(Verdict(verdict=verdict, summary="any", changes=changes))

    assert complaint("Name the user.", "Add a test") == complaint("add a TEST!", "  name the user ")
    assert complaint("Name the user.") != complaint("Name the users.")
    assert complaint("x", verdict="approve") == ""


# --- names ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stem", "name"),
    [
        ("My Feature_Ideas", "my-feature-ideas"),
        ("dark--mode!", "dark-mode"),
        ("Über größe", "uber-groe"),
        ("日本", "brief"),
        ("../../etc/passwd", "etc-passwd"),
        ("x" * 200, "x" * 60),
        ("", "brief"),
    ],
)
def test_slugs(stem: str, name: str) -> None:
    assert slug(stem) == name


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is empty"),
        (b" \n\t", "is empty"),
        (b"\xff\xfe", "not UTF-8"),
        (b"\0GITCRYPT\0x", "encrypted"),
        (b"x" * 1_100_000, "more than"),
    ],
)
def test_files_that_are_no_briefs(tmp_path: Path, content: bytes, why: str) -> None:
    file = tmp_path / "brief.md"
    file.write_bytes(content)
    with pytest.raises(RunRefusedError, match=why):
        read_brief(file, tmp_path)


def test_the_identity_of_a_brief_is_its_path_from_the_root(tmp_path: Path) -> None:
    root = tmp_path / "repo"
    (root / "ideas").mkdir(parents=True)
    inside, outside = root / "ideas" / "a.md", tmp_path / "b.md"
    for file in (inside, outside):
        file.write_text("What is wanted.")
    assert read_brief(inside, root).path == "ideas/a.md"
    assert read_brief(root / "ideas" / ".." / "ideas" / "a.md", root).path == "ideas/a.md"
    assert read_brief(outside, root).path == str(outside)


def test_what_changed_is_told_in_words() -> None:
    settings = IssueSettings(drafter="llm:a", gates=("draft",))
    params = {"brief": "b.md", "digest": "d", "prompts": prompts_digest()}
    run = IssueRun(name="b", workflow_id="issue-b", status="waiting", params=params, settings=settings, is_own=True)
    same = Brief(path="b.md", digest="d", characters=99)
    assert changes_since(run, same, {}) == []
    assert changes_since(run, same, {"drafter": "llm:a", "gates": ("draft",)}) == []
    assert changes_since(run, replace(same, digest="e"), {}) == ["the brief b.md"]
    assert changes_since(replace(run, params={**params, "prompts": "old"}), same, {}) == ["the prompts of this AgentOS"]
    assert changes_since(run, same, {"drafter": "llm:b", "gates": ()}) == [
        "drafter: llm:a then, llm:b now",
        "the gates: draft then, none now",
    ]


def test_roles_as_typed() -> None:
    assert parse_role("agent:claude", "--drafter") == Role(kind="agent", name="claude")
    assert parse_role("agent:claude:opus", "--drafter") == Role(kind="agent", name="claude", model="opus")
    assert parse_role("llm:a/b:free", "--drafter") == Role(kind="llm", name="a/b:free")
    assert parse_role("command:./x 'a b' c", "--drafter") == Role(kind="command", argv=("./x", "a b", "c"))
    assert parse_filer("none") == Filer(kind="none")
    for wrong in ("claude", "agent:", "shell:x", "command: ", "command:'"):
        with pytest.raises(RunRefusedError, match="--drafter"):
            parse_role(wrong, "--drafter")


# --- what is filed --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "title", "labels", "body"),
    [
        ("# Title\n\nText.\n\nLabels: a, `b`, a", "Title", ("a", "b"), "Text."),
        ("Text first.\n# Title\nmore", "Title", (), "Text first.\nmore"),
        ("No heading\n\n**Labels:** `x y`, **z**\n\nend", "No heading", ("x y", "z"), "end"),
        ("## Small\n# Title", "Title", (), "## Small"),
        ("# T\n\n- Labels: are shown in blue\n\nend", "T", (), "- Labels: are shown in blue\n\nend"),
        ("# T\n\nLabels:\n\nNotes", "T", (), "Labels:\n\nNotes"),
        ("# T\n\nend\n\n__Labels__: --force, -x", "T", ("force", "x"), "end"),
        ("# T\n\nlabels: none of these\n\ntext\nLabels: real", "T", ("real",), "labels: none of these\n\ntext"),
        ("", "Untitled", (), ""),
    ],
)
def test_a_draft_becomes_title_labels_and_text(text: str, title: str, labels: tuple[str, ...], body: str) -> None:
    intent = intent_of(text, "marker-1")
    assert (intent.title, intent.labels) == (title, labels)
    assert intent.body == f"{body}\n\n<!-- marker-1 -->\n"


def test_titles_are_cut() -> None:
    assert title_in(f"# {'x' * 500}")[0] == "x" * 200


@pytest.mark.parametrize(
    ("url", "number"),
    [("https://github.com/a/b2/issues/78", "78"), ("https://x.invalid/T-12#c3", "3"), ("https://x.invalid/", "")],
)
def test_the_number_is_the_last_one_in_the_url(url: str, number: str) -> None:
    assert number_in(url) == number


# --- files ----------------------------------------------------------------------------------------------------------


def test_an_artefact_is_written_once_and_a_change_by_hand_stays(tmp_path: Path) -> None:
    file = lineage.write_artefact(tmp_path, "x", 2, "draft.md", "text")
    assert file == "docs/lineage/active/x/002-draft.md"
    assert lineage.write_artefact(tmp_path, "x", 2, "draft.md", "text") == file
    (tmp_path / file).write_text("by hand\n")
    lineage.write_artefact(tmp_path, "x", 2, "draft.md", "text")
    assert lineage.read_artefact(tmp_path, file, "text") == "by hand\n"
    (tmp_path / file).unlink()
    assert lineage.read_artefact(tmp_path, file, "text") == "text"
    assert (tmp_path / file).read_text() == "text\n", "it is there again"
    assert [path.name for path in (tmp_path / file).parent.iterdir()] == ["002-draft.md"], "and nothing half-written"


def test_moving_to_done_can_be_repeated_wherever_it_was_cut_off(tmp_path: Path) -> None:
    lineage.write_artefact(tmp_path, "x", 1, "brief.md", "b")
    for _ in range(2):
        assert lineage.move_to_done(tmp_path, "x", "7", "002-filed.json", "{}") == "docs/lineage/done/7-x"
    done = tmp_path / "docs/lineage/done/7-x"
    assert sorted(path.name for path in done.iterdir()) == ["001-brief.md", "002-filed.json"]
    assert not (tmp_path / "docs/lineage/active/x").exists()


def test_a_folder_in_the_way_is_told(tmp_path: Path) -> None:
    lineage.write_artefact(tmp_path, "x", 1, "brief.md", "b")
    (tmp_path / "docs/lineage/done/7-x").mkdir(parents=True)
    (tmp_path / "docs/lineage/done/7-x/other").touch()
    with pytest.raises(AttemptError, match="cannot be moved"):
        lineage.move_to_done(tmp_path, "x", "7", "002-filed.json", "{}")
