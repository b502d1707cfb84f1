"""A run goes into one file and out of it again, whole; whatever else a file may be is refused with nothing written."""

from __future__ import annotations

import io
import json
import os
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentos import Client, Workflow, fork, resume, run
from agentos.exceptions import CheckpointCorruptedError
from agentos.workflow.transfer.export_file import export_lines, read_export
from tests.cli.conftest import Agentos
from tests.cli.runs import ask, complete, interrupted, waiting
from tests.conftest import LinkedWorktree, git
from tests.contract.journals import bodies


@pytest.fixture
def exported(tmp_worktree: LinkedWorktree, agentos: Agentos) -> Path:
    """A file with a run of the main repository, to be imported in the worktree."""
    waiting(tmp_worktree.main)
    file = tmp_worktree.main.parent / "ask.jsonl"
    done = agentos("export", "ask", "-o", file, cwd=tmp_worktree.main)
    assert (done.code, done.out) == (0, f"{file}\n")
    assert "prompts, outputs and errors are in the file" in done.err
    return file


def test_a_run_travels_whole(exported: Path, tmp_worktree: LinkedWorktree, agentos: Agentos) -> None:
    assert exported.stat().st_mode & 0o777 == 0o600
    done = agentos("import", exported, cwd=tmp_worktree.worktree)
    assert (done.code, done.out) == (0, "ask-1\n")
    assert "ask, waiting, " in done.err
    here, there = Client(tmp_worktree.main), Client(tmp_worktree.worktree)
    assert bodies(there.events("ask-1")) == bodies(here.events("ask-1"))
    assert there.checkpoints("ask-1") == here.checkpoints("ask-1")
    assert there.find("ask-1").root == str(tmp_worktree.worktree)
    listed = json.loads(agentos("list", "--json", cwd=tmp_worktree.worktree).out)
    assert [(row["workflow_id"], row["status"]) for row in listed] == [("ask-1", "waiting")]


@pytest.mark.parametrize("new", [None, "other/id\nwith all"])
def test_an_imported_run_can_be_answered_resumed_and_forked(
    exported: Path, tmp_worktree: LinkedWorktree, agentos: Agentos, new: str | None
) -> None:
    more = ["--id", new, "--json"] if new else ["--json"]
    done = agentos("import", exported, *more, cwd=tmp_worktree.worktree)
    id = new or "ask-1"
    assert json.loads(done.out)["workflow_id"] == id
    client = Client(tmp_worktree.worktree)
    client.approve(id)
    assert resume(id, workflow=ask(), repo=tmp_worktree.worktree).status == "complete"
    [cut, *_] = client.checkpoints(id)
    assert fork(cut.id, workflow=ask(), repo=tmp_worktree.worktree).status == "waiting"
    assert Client(tmp_worktree.main).show("ask-1").status == "waiting"


def test_a_run_of_the_same_id_is_not_replaced(exported: Path, tmp_worktree: LinkedWorktree, agentos: Agentos) -> None:
    done = agentos("import", exported, cwd=tmp_worktree.main)
    assert (done.code, done.out) == (2, "")
    assert "exists already" in done.err
    assert "--id NEW" in done.err
    assert agentos("import", exported, "--id", "copy", cwd=tmp_worktree.main).code == 0
    assert agentos("import", exported, "--id", "copy", cwd=tmp_worktree.main).code == 2
    assert agentos("import", exported, "--id", " ", cwd=tmp_worktree.main).code == 2
    one, two = (Client(tmp_worktree.main).checkpoints(id) for id in ("ask-1", "copy"))
    assert {cut.id for cut in one} & {cut.id for cut in two} == set()
    [asked] = [event for event in Client(tmp_worktree.main).events("copy") if event.type == "decision_required"]
    assert msgspec.to_builtins(asked)["command"].startswith("agentos approve copy ")


def test_through_a_pipe(tmp_worktree: LinkedWorktree, agentos: Agentos) -> None:
    complete(tmp_worktree.main)
    done = agentos("export", "run-1", "-o", "-", cwd=tmp_worktree.main)
    assert json.loads(done.out.splitlines()[0])["kind"] == "agentos-run"
    assert agentos("import", "-", cwd=tmp_worktree.worktree, input=done.out).code == 0
    assert Client(tmp_worktree.worktree).show("run-1").status == "complete"
    assert agentos("export", "run-1", "-o", "-", "--json", cwd=tmp_worktree.main).code == 2


def test_an_interrupted_run_is_interrupted_there_too(tmp_worktree: LinkedWorktree, agentos: Agentos) -> None:
    interrupted(tmp_worktree.main)
    assert agentos("export", "cut-1", cwd=tmp_worktree.main).out == "agentos-cut-1.jsonl\n"
    file = tmp_worktree.main / "agentos-cut-1.jsonl"
    assert agentos("import", file, cwd=tmp_worktree.worktree).code == 0
    assert Client(tmp_worktree.worktree).find("cut-1").status == "interrupted"


def test_large_outputs_and_rollbacks_travel(tmp_worktree: LinkedWorktree) -> None:
    large = "y" * 2_000_000

    def flow() -> Workflow:
        flow = Workflow("large")
        flow.add("one", lambda: large)
        flow.add("two", lambda one: len(one), needs=["one"])
        return flow

    main, there = (Client(root) for root in tmp_worktree)
    run(flow(), workflow_id="large", repo=tmp_worktree.main)
    resume(main.checkpoints("large")[0].id, workflow=flow(), repo=tmp_worktree.main)
    file = tmp_worktree.main.parent / "large.jsonl"
    file.write_bytes(b"".join(main.export("large")))
    for id in (None, "renamed"):
        with file.open("rb") as opened:
            there.import_run(opened, workflow_id=id)
        assert there.show(id or "large").outputs == {"one": large, "two": 2_000_000}
        assert there.show(id or "large").state.tasks == main.show("large").state.tasks


def test_no_file_is_overwritten_unasked(tmp_git_repo: Path, agentos: Agentos) -> None:
    complete(tmp_git_repo)
    file = tmp_git_repo / "mine.txt"
    file.write_text("mine")
    done = agentos("export", "run-1", "-o", "mine.txt", cwd=tmp_git_repo)
    assert (done.code, done.out) == (2, "")
    assert "exists already" in done.err
    assert file.read_text() == "mine"
    assert agentos("export", "run-1", "-o", "mine.txt", "--force", "--json", cwd=tmp_git_repo).code == 0
    assert file.read_text().startswith('{"kind":"agentos-run"')
    assert agentos("export", "run-1", "-o", ".", "--force", cwd=tmp_git_repo).code == 2
    done = agentos("export", "run-1", "-o", "no/such/folder", cwd=tmp_git_repo)
    assert (done.code, done.out) == (2, "")
    assert "no/such is no directory" in done.err
    assert not [name for name in os.listdir(tmp_git_repo) if name.endswith(".partial")]


def test_ids_that_are_none(tmp_git_repo: Path, agentos: Agentos) -> None:
    assert agentos("export", "run-1", cwd=tmp_git_repo).code == 2  # nothing kept here yet
    complete(tmp_git_repo, "a/../b\nc")
    complete(tmp_git_repo, "a/../b\nd")
    for id, code in (("zzz", 2), ("a/", 2), ("", 2), ("../..", 2), (os.fsdecode(b"\xff"), 2)):
        done = agentos("export", id, cwd=tmp_git_repo)
        assert (done.code, done.out) == (code, "")
        assert "Traceback" not in done.err
    done = agentos("export", "a/../b\nc", cwd=tmp_git_repo)
    assert done.out == "agentos-a_.._b_c.jsonl\n"


def test_no_repository(agentos: Agentos, tmp_path: Path) -> None:
    for argv in (("export", "x"), ("import", "no-such-file"), ("delete", "x"), ("prune", "--all")):
        done = agentos(*argv, cwd=tmp_path)
        assert done.code == 1
        assert done.err.startswith("Cannot determine checkpoint database location")


# -- hostile files


def damaged(file: Path, change: Any) -> bytes:
    """The file with its lines changed and the digest of it all made to fit again."""
    lines = [json.loads(line) for line in file.read_bytes().splitlines()][:-1]
    change(lines)
    text = b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines)
    end = {"kind": "end", "lines": len(lines), "digest": blake2b(text, digest_size=32).hexdigest()}
    return text + json.dumps(end).encode() + b"\n"


def events(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [line for line in lines if line["kind"] == "event"]


HOSTILE: dict[str, tuple[Any, int]] = {
    "newer": (lambda lines: lines[0].update(version=3), 6),
    "another kind": (lambda lines: lines[0].update(kind="x"), 2),
    "no run": (lambda lines: lines.pop(1), 6),
    "two runs": (lambda lines: lines.insert(2, lines[1]), 6),
    "a hole": (lambda lines: lines.remove(events(lines)[2]), 6),
    "a changed event": (lambda lines: events(lines)[1].update(body="{}"), 6),
    "a changed id": (lambda lines: lines[1].update(workflow_id="stolen"), 6),
    "an empty id": (lambda lines: lines[1].update(workflow_id=""), 6),
    "an unknown status": (lambda lines: lines[1].update(status="rich"), 6),
    "a type of the future": (lambda lines: events(lines)[0].update(type=999), 6),
    "no hexadecimal": (lambda lines: events(lines)[0].update(digest="zz"), 6),
    "a huge number": (lambda lines: events(lines)[0].update(at=10**30), 6),
    "a plan that is none": (lambda lines: lines[2].update(body="AAAA"), 6),
    "no base64": (lambda lines: lines[2].update(body="ä"), 6),
    "no plan": (lambda lines: lines.pop(2), 6),
    "an unknown line": (lambda lines: lines.append({"kind": "gift"}), 6),
    "a checkpoint of its own": (lambda lines: lines[-1].update(id="made-up"), 6),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_does_not_fit_is_refused_and_nothing_written(
    exported: Path, tmp_worktree: LinkedWorktree, agentos: Agentos, name: str
) -> None:
    change, code = HOSTILE[name]
    exported.write_bytes(damaged(exported, change))
    done = agentos("import", exported, cwd=tmp_worktree.worktree)
    assert (done.code, done.out) == (code, "")
    assert "Traceback" not in done.err
    assert Client(tmp_worktree.worktree).list_runs() == []


def test_files_that_are_not_ours(
    exported: Path, tmp_worktree: LinkedWorktree, agentos: Agentos, tmp_path: Path
) -> None:
    whole = exported.read_bytes()
    contents: dict[bytes, int] = {
        b"": 2,
        b"\0\xff" * 5000: 2,
        b"x" * 200_000: 2,
        b"[" * 100_000 + b"\n": 2,
        whole[:-1]: 6,
        whole[: len(whole) // 2]: 6,
        whole.rpartition(b'{"kind":"end"')[0]: 6,
        whole + b"\n": 6,
        whole + whole: 6,
        whole.replace(b"Ship it?", b"Shop it?"): 6,
    }
    for content, code in contents.items():
        exported.write_bytes(content)
        done = agentos("import", exported, cwd=tmp_worktree.worktree)
        assert (done.code, done.out) == (code, ""), done.err
        assert "Traceback" not in done.err
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "missing", tmp_path / "pipe"):
        assert agentos("import", path, cwd=tmp_worktree.worktree).code == 2
    assert Client(tmp_worktree.worktree).list_runs() == []
    assert git("status", "--short", cwd=tmp_worktree.worktree) == ""


def test_no_import_names_a_file_of_another_place_to_load(tmp_worktree: LinkedWorktree, agentos: Agentos) -> None:
    complete(tmp_worktree.main)  # defined in this very file, outside the repository
    agentos("export", "run-1", "-o", "../a.jsonl", cwd=tmp_worktree.main)
    done = agentos("import", "../a.jsonl", "--json", cwd=tmp_worktree.worktree)
    assert json.loads(done.out)["source_dropped"] is True
    assert "outside the repository" in done.err
    assert Client(tmp_worktree.worktree).find("run-1").source == ""


def test_writing_and_reading_are_inverse(tmp_git_repo: Path) -> None:
    complete(tmp_git_repo)
    store = Client(tmp_git_repo).place.open(readonly=True)
    copy = store.read_copy(store.find_run("run-1").workflow_id)
    store.close()
    file = tmp_git_repo / "x"
    file.write_bytes(b"".join(export_lines(copy, version="1")))
    with file.open("rb") as opened:
        assert read_export(opened, "x") == copy


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"status":"waiting"', b'"status":"running"'),
        (b'"name":"ask"', b'"name":"bad"'),
        (b'"token":', b'"token":9'),
        (b'"abandoned":false', b'"abandoned":true'),
        (b'"kind":"checkpoint"', b'"kind":"checkpoint" '),
    ],
)
def test_what_no_other_digest_covers_is_covered_by_that_of_the_file(tmp_git_repo: Path, old: bytes, new: bytes) -> None:
    """Events vouch for each other; the run, its name and its checkpoints have the last line of the file alone."""
    waiting(tmp_git_repo)
    whole = b"".join(Client(tmp_git_repo).export("ask-1"))
    assert read_export(io.BytesIO(whole), "ask.jsonl").run.status == "waiting"
    assert old in whole
    with pytest.raises(CheckpointCorruptedError, match="the digest differs from that of the lines before it"):
        read_export(io.BytesIO(whole.replace(old, new, 1)), "ask.jsonl")
