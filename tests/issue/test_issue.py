"""`agentos issue`, through the real program: rounds, verdicts, gates, names, exit codes."""

from __future__ import annotations

import json
import shlex
import shutil
import time
from pathlib import Path

import pytest

from agentos import Client
from tests.cli.conftest import SOURCES
from tests.conftest import git
from tests.issue.stage import BRIEF, Stage

RUN = "issue-dark-mode"


def test_a_brief_becomes_a_filed_issue(stage: Stage) -> None:
    stage.reviewer("revise", "approve")
    stage.drafts("Here you are:\n\n# Night\n\nOne.\n", "# Dark mode\n\nTwo.\n\nLabels: ui, `night`\n")
    done = stage.issue("--brief", "dark-mode.md")
    assert done.code == 0, done.err
    assert done.out.splitlines()[-1] == "https://tracker.invalid/issues/1"
    [issue] = stage.filed
    assert issue.startswith("create --title Dark mode --label ui --label night\nTwo.\n\n<!-- agentos-issue:")
    folder = "done/1-dark-mode"
    assert stage.artefacts(folder) == [
        "001-brief.md",
        "002-draft.md",
        "003-verdict.md",
        "004-draft.md",
        "005-verdict.md",
        "006-filed.json",
    ]
    assert stage.artefact(f"{folder}/001-brief.md") == BRIEF
    assert stage.artefact(f"{folder}/002-draft.md") == "# Night\n\nOne.\n", "without the word before it"
    assert stage.artefact(f"{folder}/003-verdict.md") == "# Revise\n\nNearly.\n\n- Name the user.\n"
    record = json.loads(stage.artefact(f"{folder}/006-filed.json"))
    assert (record["number"], record["rounds"], record["brief"]) == ("1", 2, "dark-mode.md")
    first, second = stage.calls("drafter")
    assert BRIEF.strip() in first
    assert "Name the user." not in first
    assert all(text in second for text in (BRIEF.strip(), "# Night", "Nearly.", "Name the user."))
    assert "# Dark mode" in stage.calls("reviewer")[1]
    assert not (stage.repo / "docs/lineage/active/dark-mode").exists()


def test_the_same_brief_is_not_filed_twice(stage: Stage) -> None:
    assert stage.issue("--brief", "dark-mode.md").code == 0
    again = stage.issue("--brief", "./dark-mode.md")
    assert (again.code, again.out) == (0, "https://tracker.invalid/issues/1\n")
    assert "is done already" in again.err
    assert len(stage.filed) == len(stage.calls("drafter")) == 1


def test_a_human_looks_at_the_draft_and_the_verdict(stage: Stage) -> None:
    done = stage.issue("--brief", "dark-mode.md", gates="draft,verdict")
    assert done.code == 3
    assert f"agentos approve {RUN} approval:look --choose revise\n" in done.err
    assert "about the file docs/lineage/active/dark-mode/002-draft.md" in done.err
    assert stage.calls("reviewer") == []

    said = ("--choose", "revise", "--reason", "Too short.")
    assert stage.agentos("approve", RUN, *said).code == 3, "the next draft waits"
    assert "Too short." in stage.calls("drafter")[1], "what a human says before any review counts"
    assert stage.artefact("active/dark-mode/003-feedback.md") == "Too short.\n"

    draft = stage.repo / "docs/lineage/active/dark-mode/004-draft.md"
    draft.write_text("# Darker\n\nBy hand.\n")
    assert stage.agentos("approve", RUN, "--choose", "send").code == 3, "the verdict waits"
    assert "By hand." in stage.calls("reviewer")[0]
    draft.write_text("# Darkest\n\nBy hand, again.\n")
    assert stage.agentos("approve", RUN, "--choose", "accept").code == 0
    assert stage.filed[0].startswith("create --title Darkest\nBy hand, again.\n")


def test_a_rejected_draft_ends_it_and_anew_begins_another(stage: Stage) -> None:
    assert stage.issue("--brief", "dark-mode.md", gates="draft").code == 3
    assert stage.agentos("reject", RUN, "--reason", "no").code == 0
    assert stage.agentos("resume", RUN).code == 1
    again = stage.issue("--brief", "dark-mode.md")
    assert again.code == 2
    assert "was rejected, which is final\nBegin anew: agentos issue --brief dark-mode.md --anew" in again.err
    assert "no unfinished issue is here" in stage.agentos("issue", "--resume").err
    done = stage.issue("--brief", "dark-mode.md", "--anew")
    assert done.code == 0, done.err
    assert stage.status("issue-dark-mode-2") == "complete"
    assert stage.artefacts("active/dark-mode") == ["001-brief.md", "002-draft.md"], "a folder for each run"
    assert len(stage.filed) == 1


# --- verdicts -------------------------------------------------------------------------------------------------------


def test_discuss_asks_a_human_though_gates_are_off(stage: Stage) -> None:
    stage.reviewer("discuss")
    done = stage.issue("--brief", "dark-mode.md")
    assert done.code == 3, done.err
    [(gate, question)] = stage.gates().items()
    assert gate == "approval:decide"
    assert "wants a human to decide. Two aims in one." in question
    assert stage.filed == []
    stage.reviewer("approve")
    assert stage.agentos("approve", RUN, "--choose", "revise", "--reason", "Split it.").code == 0
    assert "Split it." in stage.calls("drafter")[-1]
    assert len(stage.filed) == 1


def test_after_max_rounds_a_human_is_asked_though_gates_are_off(stage: Stage) -> None:
    stage.reviewer("revise", "revise more")
    assert stage.issue("--brief", "dark-mode.md", "--max-rounds", "2").code == 3
    assert "not content after 2 rounds." in stage.gates()["approval:decide@2"]
    assert stage.filed == []


def test_an_unreadable_verdict_is_asked_for_once_more(stage: Stage) -> None:
    stage.reviewer("garbage", '```json\n{"verdict": "approve", "summary": "ok", "changes": []}\n```')
    assert stage.issue("--brief", "dark-mode.md").code == 0
    first, again = stage.calls("reviewer")
    assert again.startswith(first.rstrip())
    assert "could not be read as that JSON object" in again


@pytest.mark.full
def test_a_verdict_that_is_unreadable_twice_is_a_gate(stage: Stage) -> None:
    stage.reviewer("LGTM!", '{"verdict": "approved"}')
    assert stage.issue("--brief", "dark-mode.md").code == 3
    file = "docs/lineage/active/dark-mode/003-verdict.md"
    asked = f"The reviewer gave no readable verdict, twice. ({file}) Accept the draft as it is?"
    assert stage.gates() == {"approval:decide": asked}
    assert "LGTM" not in stage.artefact("active/dark-mode/003-verdict.md"), "the second one is shown"
    assert (len(stage.calls("reviewer")), stage.filed) == (2, [])
    assert stage.agentos("approve", RUN, "--choose", "accept").code == 0
    assert len(stage.filed) == 1


@pytest.mark.full
def test_the_same_complaint_twice_in_a_row_is_a_gate(stage: Stage) -> None:
    stage.reviewer("revise", "revise more", "revise", "revise again", "approve")
    assert stage.issue("--brief", "dark-mode.md").code == 3
    assert "asks for the same as in the round before" in stage.gates()["approval:decide@4"], "in other words, too"
    assert len(stage.calls("drafter")) == 4, "the complaint of a round before the last is none of that"
    assert stage.agentos("approve", RUN, "--choose", "revise").code == 0
    assert len(stage.filed) == 1


# --- trouble --------------------------------------------------------------------------------------------------------


def test_75_from_a_program_is_75_and_a_later_try_goes_on(stage: Stage) -> None:
    stage.reviewer(75, "approve")
    done = stage.issue("--brief", "dark-mode.md")
    assert done.code == 75, done.err
    assert "asks to be tried again later" in done.err
    assert f"Nothing is wrong with the run. Go on later with: agentos resume {RUN}" in done.err
    assert stage.issue("--brief", "dark-mode.md").code == 0
    assert len(stage.filed) == 1
    assert len(stage.calls("drafter")) == 1, "what was paid for is not asked again"


@pytest.mark.full
def test_75_from_the_filer_is_75_at_once(stage: Stage) -> None:
    filer = stage.beside / "filer.sh"
    working = filer.read_text()
    filer.write_text(f"#!/bin/sh\necho tried >> {stage.beside}/tried\nexit 75\n")
    assert stage.issue("--brief", "dark-mode.md").code == 75
    assert (stage.beside / "tried").read_text() == "tried\n", "later is not at once"
    filer.write_text(working)
    assert stage.issue("--brief", "dark-mode.md").code == 0
    assert len(stage.filed) == len(stage.calls("drafter")) == len(stage.calls("reviewer")) == 1


def test_a_filer_that_dies_after_creating_files_no_second_issue(stage: Stage) -> None:
    filer = stage.beside / "filer.sh"
    died = stage.beside / "died"
    created = '    echo "https://tracker.invalid/issues/$number"'
    dies = f"    test -e {died} || {{ touch {died}; kill -9 $$; }}\n"
    filer.write_text(filer.read_text().replace(created, dies + created))
    assert stage.issue("--brief", "dark-mode.md").code == 0
    assert died.exists()
    assert len(stage.filed) == 1, "it was found by its marker"


def test_a_program_that_fails_is_told(stage: Stage) -> None:
    stage.drafts(3)
    done = stage.issue("--brief", "dark-mode.md")
    assert done.code == 1
    assert "drafter.sh ended with 3" in done.err
    assert f"agentos resume {RUN}" in done.err


def test_what_is_missing_is_found_before_anything_is_spent(stage: Stage) -> None:
    (stage.repo / "bin").mkdir()
    missing = ["--reviewer", "command:no-such-program --fast", "--file-with", "command:./bin"]
    done = stage.agentos("issue", "--brief", "dark-mode.md", *stage.roles[:2], *missing, "--gates", "none")
    assert done.code == 1
    assert "missing: reviewer: no-such-program; filer: ./bin" in done.err
    [skips] = [line for line in done.out.splitlines() if "skipped" in line]
    assert skips[9:] == "14 tasks are skipped: 7 because of preflight, 7 by a condition", "a line, not thirty"
    assert stage.calls("drafter") == []


def test_roles_that_nobody_knows_are_refused(stage: Stage) -> None:
    done = stage.agentos("issue", "--brief", "dark-mode.md", "--reviewer", "llm:")
    assert (done.code, "--reviewer takes agent:NAME" in done.err) == (2, True)
    for name, hint in (("clade", "(did you mean 'claude'?)"), ("command", "claude, codex,")):
        done = stage.agentos("issue", "--brief", "dark-mode.md", "--drafter", f"agent:{name}", "--anew")
        assert done.code == 2
        assert f"--drafter takes one of the agents claude, codex, gemini, opencode, copilot, not '{name}'" in done.err
        assert hint in done.err
    assert Client(stage.repo).list_runs() == [], "nothing was begun"


def test_a_filer_that_finds_other_words_than_a_url_has_found_nothing(stage: Stage, tmp_path: Path) -> None:
    filer = tmp_path / "filer.sh"
    filer.write_text("#!/bin/sh\necho no such issue\n")
    filer.chmod(0o755)
    done = stage.agentos(
        "issue", "--brief", "dark-mode.md", *stage.roles[:4], "--gates", "none", "--file-with", f"command:{filer}"
    )
    assert done.code == 1
    assert "filer.sh find printed no URL of the issue: 'no such issue'" in done.err
    assert stage.artefacts("active/dark-mode")[-1] == "003-verdict.md", "it is not filed, and everything is kept"


# --- names and changes ----------------------------------------------------------------------------------------------


@pytest.mark.full
def test_two_briefs_of_one_name_have_runs_of_their_own(stage: Stage) -> None:
    other = stage.brief("Another thing altogether, in a brief of the same name.\n", "more/Dark_Mode.md")
    assert stage.issue("--brief", "dark-mode.md").code == 0
    assert stage.issue("--brief", str(other)).code == 0
    both = ("dark-mode.md", str(other))
    rows = [json.loads(stage.issue("--brief", name, "--dry-run", "--json").out)[0] for name in both]
    assert [row["brief"] for row in rows] == ["dark-mode.md", "more/Dark_Mode.md"]
    assert rows[0]["name"] == "dark-mode"
    assert rows[1]["name"].startswith("dark-mode-")
    assert [row["status"] for row in rows] == ["filed", "filed"]
    assert len(stage.filed) == 2


@pytest.mark.full
def test_other_prompts_than_it_began_with_are_asked_about(stage: Stage, tmp_path: Path) -> None:
    assert stage.issue("--brief", "dark-mode.md", gates="draft").code == 3
    changed = tmp_path / "changed"
    shutil.copytree(SOURCES, changed)
    prompts = changed / "agentos/workflows/issue/prompts.py"
    prompts.write_text(prompts.read_text().replace("Invent no facts.", "Invent nothing."))
    asked = stage.issue("--brief", "dark-mode.md", gates="draft", env={"PYTHONPATH": str(changed)})
    assert (asked.code, "the prompts of this AgentOS" in asked.err) == (3, True)


@pytest.mark.full
def test_a_brief_is_named_from_here_or_from_the_root(stage: Stage, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    stage.brief(name="ideas/active/one.md")
    stage.repo, root = elsewhere, stage.repo
    given = ("--repo", str(root), "--brief", "ideas/active/one.md")
    assert stage.issue(*given, gates="draft").code == 3
    stage.agentos("abort", "issue-one", "--repo", str(root))
    final = stage.issue(*given)
    assert final.code == 2
    again = f"agentos issue --brief {root}/ideas/active/one.md --repo {root} --anew"
    assert f"Begin anew: {again}" in final.err, "a command that can be typed here"
    assert stage.agentos(*shlex.split(again)[1:], "--gates", "none").code == 0
    asked = stage.issue("--repo", str(root), "--select", gates="draft")
    words = next(line for line in asked.err.splitlines() if line.startswith("Choose one: agentos "))
    assert stage.agentos(*shlex.split(words.removeprefix("Choose one: agentos ")), "--anew").code == 3


@pytest.mark.full
def test_a_link_that_leads_out_of_the_repository_is_no_brief(stage: Stage, tmp_path: Path) -> None:
    secret = tmp_path / "secret.md"
    secret.write_text("What nobody else should ever read, and no model be sent.\n")
    stage.brief(name="ideas/active/one.md")
    (stage.repo / "ideas/active/two.md").symlink_to(secret)
    (stage.repo / "folder").symlink_to(tmp_path)
    (stage.repo / "inside.md").symlink_to("dark-mode.md")
    done = stage.issue("--all")
    assert (done.code, len(stage.filed), len(stage.calls("drafter"))) == (2, 1, 1)
    assert f"two.md is a link that leads out of the repository, to {secret}\nName that file itself." in done.err
    for name in ("ideas/active/two.md", "folder/secret.md", str(stage.repo / "ideas/../folder/secret.md")):
        assert stage.issue("--brief", name).code == 2
    assert len(stage.calls("drafter")) == 1
    assert stage.issue("--brief", "../secret.md").code == 0, "named as what it is"
    assert stage.issue("--brief", "inside.md").code == 0
    assert stage.status() == "complete", "a link inside is the brief it leads to"


def test_a_draft_made_a_link_that_leads_out_is_not_read(stage: Stage, tmp_path: Path) -> None:
    assert stage.issue("--brief", "dark-mode.md", gates="draft").code == 3
    secret = tmp_path / "secret.md"
    secret.write_text("What nobody else should ever read.\n")
    draft = stage.repo / "docs/lineage/active/dark-mode/002-draft.md"
    draft.unlink()
    draft.symlink_to(secret)
    done = stage.agentos("approve", RUN, "--choose", "send")
    assert (done.code, "002-draft.md leads out of" in done.err) == (1, True)
    assert stage.calls("reviewer") == []
    draft.unlink()
    assert stage.issue("--brief", "dark-mode.md", gates="draft").code == 0, "then what the journal holds counts"


def test_a_brief_with_a_zero_byte_is_no_text(stage: Stage) -> None:
    stage.brief("Some text and then\0something else that nobody can read.\n", "zero.md")
    done = stage.issue("--brief", "zero.md")
    assert (done.code, "zero.md is no text" in done.err) == (2, True)


def test_where_nothing_can_be_written_that_is_told_and_a_resume_goes_on(stage: Stage) -> None:
    (stage.repo / "docs").write_text("a file")
    done = stage.issue("--brief", "dark-mode.md")
    assert done.code == 1
    assert "docs/lineage/active/dark-mode/001-brief.md cannot be written: Not a directory" in done.err
    (stage.repo / "docs").unlink()
    assert stage.issue("--brief", "dark-mode.md").code == 0


@pytest.mark.parametrize("what", ["the brief", "drafter"])
def test_what_changed_is_asked_about_and_never_taken_silently(stage: Stage, what: str) -> None:
    assert stage.issue("--brief", "dark-mode.md", gates="draft").code == 3
    given = ["issue", "--brief", "dark-mode.md", *stage.roles, "--gates", "draft"]
    if what == "the brief":
        stage.brief("Something else is wanted now.\n")
    else:
        given[given.index("--drafter") + 1] = "command:cat"
    asked = stage.agentos(*given)
    assert asked.code == 3
    assert what in asked.err
    assert "--as-begun" in asked.err
    assert f"To begin anew with this:  {shlex.join(['agentos', *given])} --anew" in asked.err
    assert len(stage.calls("drafter")) == 1

    assert stage.agentos(*given, "--as-begun").code == 3, "it waits where it waited"
    assert stage.status() == "waiting"
    done = stage.agentos(*given, "--anew")
    assert done.code == 3
    assert (stage.status(), stage.status("issue-dark-mode-2")) == ("aborted", "waiting")


def test_anew_keeps_the_roles_of_the_last_run_but_for_what_is_typed(stage: Stage) -> None:
    assert stage.issue("--brief", "dark-mode.md", gates="draft").code == 3
    stage.brief("Something else is wanted now, and this is what it is about.\n")
    assert stage.agentos("issue", "--brief", "dark-mode.md", "--anew", "--gates", "none").code == 0
    assert (len(stage.calls("drafter")), len(stage.filed)) == (2, 1)
    assert "Something else is wanted now" in stage.calls("drafter")[-1]


def test_a_run_that_is_refused_takes_the_place_of_none(stage: Stage) -> None:
    assert stage.issue("--brief", "dark-mode.md", gates="draft").code == 3
    unpriced = ["--drafter", "agent:codex", *stage.roles[2:], "--budget", "2", "--anew"]
    refused = stage.agentos("issue", "--brief", "dark-mode.md", *unpriced)
    assert (refused.code, "these agents do not tell what they cost: 'codex'" in refused.err) == (2, True)
    assert stage.status() == "waiting", "the one that was under way is still there"


@pytest.mark.full
def test_two_repositories_may_keep_their_runs_in_one_database(stage: Stage, tmp_path: Path) -> None:
    stage.env["AGENTOS_WORKFLOW_DB"] = str(tmp_path / "shared" / "runs.db")
    assert stage.issue("--brief", "dark-mode.md").code == 0
    first, stage.repo = stage.repo, tmp_path / "second"
    stage.repo.mkdir()
    git("init", "--quiet", cwd=stage.repo)
    stage.brief()
    assert stage.issue("--brief", "dark-mode.md").code == 0
    assert len(stage.filed) == 2
    assert [row["name"] for row in json.loads(stage.agentos("list", "--json").out)] == ["issue", "issue"]
    assert (first / "docs/lineage/done/1-dark-mode").is_dir()
    assert [path.name[:12] for path in (stage.repo / "docs/lineage/done").iterdir()] == ["2-dark-mode-"]


def test_resume_names_the_issue_or_takes_the_newest(stage: Stage) -> None:
    stage.brief(name="other.md")
    for brief in ("dark-mode.md", "other.md"):
        assert stage.issue("--brief", brief, gates="draft").code == 3
    for run in (RUN, "issue-other"):
        assert stage.agentos("approve", run, "--choose", "send", "--no-resume").code == 0
    done = stage.agentos("issue", "--resume")
    assert (done.code, stage.status("issue-other"), stage.status()) == (0, "complete", "interrupted")
    assert stage.agentos("issue", "--resume", "dark-mode").code == 0
    nothing = stage.agentos("issue", "--resume")
    assert (nothing.code, "no unfinished issue is here" in nothing.err) == (2, True)


def test_a_dry_run_writes_nothing_and_calls_nobody(stage: Stage) -> None:
    done = stage.issue("--brief", "dark-mode.md", "--dry-run", "--json")
    [row] = json.loads(done.out)
    assert (row["status"], row["name"], row["workflow_id"]) == ("would begin", "dark-mode", RUN)
    assert not (stage.repo / ".agentos").exists()
    assert not (stage.repo / "docs").exists()
    assert stage.calls("drafter") == []


def test_select_and_all_look_into_ideas(stage: Stage) -> None:
    for name in ("one", "two"):
        stage.brief(name=f"ideas/active/{name}.md")
    (stage.repo / "ideas/active/locked.md").write_bytes(b"\0GITCRYPT\0secret")
    shown = stage.issue("--select")
    assert shown.code == 3, "nobody is there to choose"
    assert "  1  one" in shown.err
    assert "  2  two" in shown.err
    assert "1 brief encrypted" in shown.err
    assert (
        shlex.join(["--brief", str(stage.repo / "ideas/active/one.md"), *stage.roles, "--gates", "none"]) in shown.err
    )
    done = stage.issue("--all")
    assert done.code == 0, done.err
    assert len(stage.filed) == 2
    again = stage.issue("--all")
    assert (again.code, "0 briefs to do of 2" in again.err) == (0, True)


@pytest.mark.full
def test_all_leaves_alone_what_is_filed_or_dropped(stage: Stage) -> None:
    for name in ("aborted", "filed", "rejected"):
        stage.brief(name=f"ideas/active/{name}.md")
        assert stage.issue("--brief", f"ideas/active/{name}.md", gates="draft").code == 3
    assert stage.agentos("approve", "issue-filed", "--choose", "send").code == 0
    assert stage.agentos("abort", "issue-aborted").code == 0
    assert stage.agentos("reject", "issue-rejected").code == 0
    done = stage.issue("--all")
    assert (done.code, len(stage.filed)) == (0, 1), "other gates than it was filed with are no reason to ask"
    assert "Left out: run issue-aborted of ideas/active/aborted.md was aborted, which is final" in done.err
    assert "Left out: run issue-rejected of ideas/active/rejected.md was rejected, which is final" in done.err
    assert "0 briefs to do of 3" in done.err
    done = stage.issue("--all", "--anew")
    assert done.code == 0, done.err
    assert len(stage.filed) == 3, "the one that is filed is not filed once more"


@pytest.mark.full
def test_a_brief_that_cannot_be_one_does_not_stop_the_others(stage: Stage) -> None:
    for name in ("one", "three"):
        stage.brief(name=f"ideas/active/{name}.md")
    stage.brief("", name="ideas/active/empty.md")
    (stage.repo / "ideas/active/other.md").write_bytes(b"\xff")
    planned = json.loads(stage.issue("--all", "--dry-run", "--json").out)
    assert {row["brief"]: row["status"] for row in planned} == {
        "ideas/active/one.md": "would begin",
        "ideas/active/three.md": "would begin",
        "ideas/active/empty.md": "refused",
        "ideas/active/other.md": "refused",
    }
    done = stage.issue("--all")
    assert (done.code, len(stage.filed)) == (2, 2)
    assert "empty.md is empty" in done.err
    assert "other.md is not UTF-8" in done.err


@pytest.mark.full
def test_one_that_another_process_is_at_does_not_stop_the_others(stage: Stage, tmp_path: Path) -> None:
    for name in ("one", "two"):
        stage.brief(name=f"ideas/active/{name}.md")
    waits = tmp_path / "waits.sh"
    there = f"touch {tmp_path}/begun; while ! test -e {tmp_path}/go; do sleep 0.02; done"
    waits.write_text(f"#!/bin/sh\n{there}\necho '# Fine'\n")
    waits.chmod(0o755)
    slow = ["--drafter", f"command:{waits}", *stage.roles[2:], "--gates", "none"]
    first = stage.start("issue", "--brief", "ideas/active/one.md", *slow)
    while not (tmp_path / "begun").exists():
        assert first.poll() is None
        time.sleep(0.02)
    done = stage.agentos("issue", "--all", "--as-begun", *stage.roles, "--gates", "none")
    assert done.code == 75, done.err
    assert "run issue-one is being driven by process" in done.err
    assert stage.status("issue-two") == "complete"
    (tmp_path / "go").touch()
    first.communicate(timeout=60)
    assert (first.returncode, len(stage.filed)) == (0, 2)


def test_without_a_filer_the_issue_stays_as_a_file(stage: Stage) -> None:
    done = stage.agentos("issue", "--brief", "dark-mode.md", *stage.roles[:4], "--gates", "none", "--file-with", "none")
    assert done.code == 0, done.err
    assert done.out.splitlines()[-1] == "docs/lineage/active/dark-mode"
    assert stage.artefact("active/dark-mode/004-issue.md").startswith("# Dark mode\n\nFirst text.\n")
    assert stage.filed == []


def test_links_that_lead_out_of_the_repository_are_not_written_through(stage: Stage, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (stage.repo / "docs").symlink_to(outside)
    done = stage.issue("--brief", "dark-mode.md")
    assert (done.code, "leads out of" in done.err) == (1, True)
    assert list(outside.iterdir()) == []


def test_an_issue_run_takes_commands_as_any_other(stage: Stage) -> None:
    assert stage.issue("--brief", "dark-mode.md", gates="draft").code == 3
    assert stage.agentos("graph", RUN).out.startswith("flowchart TD")
    assert "approval:look" in stage.agentos("inbox").out
    assert stage.agentos("abort", RUN).code == 0
    refused = stage.issue("--brief", "dark-mode.md", gates="draft")
    assert (refused.code, "--anew" in refused.err) == (2, True)
