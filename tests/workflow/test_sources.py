"""Tasks with `sources`: what counts as one, what is on record, and what a resume runs again."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agentos import Workflow, fork, resume, run
from agentos.client import Client
from agentos.client.definitions import find_workflow
from agentos.exceptions import GitError, RunFailedError, WorkflowFileError
from agentos.machine import events as ev
from agentos.workflow.files import source_files
from agentos.workflow.files.source_files import SourceReader
from agentos.workflow.place.place import Place
from tests.conftest import git
from tests.forks import run_forked
from tests.workflow.support import Killer, go_on, kill


@pytest.fixture
def repo(tmp_git_repo: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in {
        "src/a.py": "a = 1\n",
        "src/b.py": "b = 1\n",
        "docs/index.md": "# Docs\n",
        ".gitignore": "*.log\nbuild/\nran-*\n",
    }.items():
        path = tmp_git_repo / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    git("add", ".", cwd=tmp_git_repo)
    git("commit", "--quiet", "--message", "files", cwd=tmp_git_repo)
    monkeypatch.chdir(tmp_git_repo)
    return tmp_git_repo


def files(root: Path, *patterns: str, memory: Path | None = None) -> dict[str, str]:
    return dict(SourceReader(root, memory).read([patterns])[patterns].files)


def ran(repo: Path, *names: str) -> str:
    """How often each task ran."""
    paths = [repo / f"ran-{name}" for name in names]
    return " ".join(str(len(path.read_text().splitlines()) if path.exists() else 0) for path in paths)


def note(name: str, then: str = "true") -> str:
    return f"echo x >> ran-{name}; {then}"


def reasons(run_id: str, **more: Any) -> dict[str, str]:
    plan = Client().preview_resume(run_id, **more)
    return {row.task_id: f"{row.verdict}: {row.reason}" for row in plan.verdicts}


def ci() -> Workflow:
    flow = Workflow("ci")
    flow.add("test", "shell", run=note("test", "cat src/*.py"), sources="src/**", effects="none")
    flow.add("docs", "shell", run=note("docs", "cat docs/*"), sources="docs/**", effects="none")
    flow.add("pack", "shell", run=note("pack"), needs=["test", "docs"], effects="none")
    return flow


# --- which files ----------------------------------------------------------------------------------------------------


def test_tracked_and_unignored_files_count(repo: Path) -> None:
    (repo / "src/new.py").write_text("new")
    (repo / "src/noise.log").write_text("ignored")
    assert sorted(files(repo, "src/**")) == ["src/a.py", "src/b.py", "src/new.py"]
    (repo / "src/a.py").unlink()
    assert sorted(files(repo, "src/**")) == ["src/b.py", "src/new.py"]


def test_a_path_without_wildcards_counts_though_git_ignores_it(repo: Path) -> None:
    (repo / "build").mkdir()
    (repo / "build/x").write_text("x")
    (repo / "a.log").write_text("x")
    assert sorted(files(repo, "build", "a.log")) == ["a.log", "build/x"]
    assert files(repo, "build/**", "*.log") == {}


def test_names_of_any_kind_are_told_apart(repo: Path) -> None:
    odd = os.fsdecode(b"src/\xff.py")
    (repo / odd).write_text("x")
    (repo / "src/ü b\n.py").write_text("x")
    assert sorted(files(repo, "src/**")) == ["src/\\xff.py", "src/a.py", "src/b.py", "src/ü b\n.py"]
    (repo / "H 160000 0 0\tx").mkdir()
    tricky = {"? x", "? H 1\tx", "\t", "H 160000 0 0\tx/y"}  # as git writes what is tracked, and what is not
    for name in tricky:
        (repo / name).write_text("x")
    before = files(repo, "**")
    assert tricky <= before.keys()
    git("add", ".", cwd=repo)
    assert files(repo, "**") == before


def test_a_link_counts_by_where_it_points_and_a_program_by_its_bit(repo: Path, tmp_path: Path) -> None:
    (repo / "src/link").symlink_to("a.py")
    before = files(repo, "src/**")
    (repo / "src/link").unlink()
    (repo / "src/link").symlink_to("b.py")
    (repo / "src/a.py").chmod(0o755)
    after = files(repo, "src/**")
    assert {name for name in after if before[name] != after[name]} == {"src/link", "src/a.py"}
    (repo / "src/b.py").write_text("b = 2\n")
    assert files(repo, "src/**")["src/link"] == after["src/link"]


def test_a_repository_inside_counts_with_its_files(repo: Path) -> None:
    inner = repo / "src/inner"
    inner.mkdir()
    git("init", "--quiet", cwd=inner)
    (inner / "x.py").write_text("x")
    assert "src/inner/x.py" in files(repo, "src/**")
    git("add", ".", cwd=inner)
    git("-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "--quiet", "--message", "x", cwd=inner)
    git("add", "src/inner", cwd=repo)
    assert sorted(files(repo, "src/inner/**")) == ["src/inner/x.py"]


def test_outside_a_repository_every_file_counts(tmp_path: Path) -> None:
    (tmp_path / "src/.agentos").mkdir(parents=True)
    (tmp_path / "src/.agentos/x").write_text("ours")
    (tmp_path / "src/a.log").write_text("a")
    (tmp_path / "top.txt").write_text("a")
    assert sorted(files(tmp_path, "src/**", "top.txt")) == ["src/a.log", "top.txt"]
    assert sorted(files(tmp_path, "**/*.log")) == ["src/a.log"]


def test_without_git_every_file_counts(repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (repo / "src/a.log").write_text("ignored by git alone")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert sorted(files(repo, "src/**")) == ["src/a.log", "src/a.py", "src/b.py"]


def test_a_repository_that_git_cannot_read_is_an_error_not_another_answer(repo: Path) -> None:
    (repo / ".git/index").write_bytes(b"DIRC damaged")
    with pytest.raises(GitError):
        files(repo, "src/**")


def test_a_pipe_is_no_source_and_keeps_nobody_waiting(repo: Path) -> None:
    os.mkfifo(repo / "src/pipe")
    assert files(repo, "src/pipe", "src/**").keys() == {"src/a.py", "src/b.py"}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_cannot_be_read_is_told_by_when_it_changed(repo: Path) -> None:
    (repo / "src/a.py").chmod(0)
    before = files(repo, "src/**")
    assert before == files(repo, "src/**")
    os.utime(repo / "src/a.py", (1, 1))
    assert before != files(repo, "src/**")


# --- what is remembered ----------------------------------------------------------------------------------------------


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that are read from here on."""
    found: list[str] = []
    read = source_files._read

    def note_and_read(path: str, stat: os.stat_result) -> tuple[str | None, bool]:
        found.append(os.path.basename(path))
        return read(path, stat)

    monkeypatch.setattr(source_files, "_read", note_and_read)
    return found


def grow_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that changed just now are read again: let it be later."""
    monkeypatch.setattr(source_files, "_YOUNG_NS", -(10**12))


def test_what_was_read_is_not_read_again_before_it_changes(
    repo: Path, tmp_path: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    grow_old(monkeypatch)
    memory = tmp_path / "known"
    reader = SourceReader(repo, memory)
    first = reader.read([("src/**",), ("src/a.py",)])
    assert sorted(reads) == ["a.py", "b.py"]
    reader.save()
    assert memory.stat().st_mode & 0o777 == 0o600
    reads.clear()
    assert SourceReader(repo, memory).read([("src/**",)])[("src/**",)] == first[("src/**",)]
    assert reads == []
    (repo / "src/a.py").write_text("a = 3\n")  # as long as before
    assert files(repo, "src/**", memory=memory) != first[("src/**",)].files
    assert reads == ["a.py"]


def test_a_file_that_has_just_changed_is_read_again(repo: Path, tmp_path: Path, reads: list[str]) -> None:
    reader = SourceReader(repo, tmp_path / "known")
    reader.read([("src/**",)])
    reader.read([("src/**",)])
    assert sorted(reads) == ["a.py", "a.py", "b.py", "b.py"]


def test_an_edit_of_equal_size_within_one_tick_of_a_coarse_clock_is_noticed(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a file system tells whole seconds: size, times and inode are then what they were before the edit."""

    def coarse(look: Callable[..., os.stat_result], *args: Any, **how: Any) -> os.stat_result:
        found = look(*args, **how)
        ticks = {f"st_{one}_ns": int(getattr(found, f"st_{one}")) * 10**9 for one in ("atime", "mtime", "ctime")}
        return os.stat_result(tuple(found), ticks)

    for look in (os.lstat, os.fstat):
        monkeypatch.setattr(os, look.__name__, partial(coarse, look))
    path, memory, seen = repo / "src/a.py", tmp_path / "known", list[source_files.Signature]()
    while len(seen) != 2 or seen[0] != seen[1]:  # until both edits fell into one second
        contents, seen = list[str](), []
        for text in ("a = 2\n", "a = 3\n"):
            path.write_text(text)
            reader = SourceReader(repo, memory)
            contents.append(reader.read([("src/**",)])[("src/**",)].files["src/a.py"])
            reader.save()
            seen.append(source_files._signature(os.lstat(path)))
        assert contents[0] != contents[1]


def test_an_edit_that_puts_the_time_back_is_noticed(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grow_old(monkeypatch)
    reader, path = SourceReader(repo, tmp_path / "known"), repo / "src/a.py"
    before, found = reader.read([("src/**",)])[("src/**",)].files, path.stat()
    reader.save()
    path.write_text("a = 3\n")
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    assert (path.stat().st_mtime_ns, path.stat().st_size) == (found.st_mtime_ns, found.st_size)
    assert reader.read([("src/**",)])[("src/**",)].files != before
    assert files(repo, "src/**", memory=tmp_path / "known") != before


DAMAGE = [
    b"",
    b"{",
    b"[]",
    b'[["src/a.py"],[1],[2],[3],[4]]',
    b'[[1],[1],[2],[3],[4],["x"]]',
    b'[["src/\\u0000"],[1],[2],[3],[4],["x"]]',
    b"[1,2]",
    b"null",
]


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_to_the_memory_costs_time_only(repo: Path, tmp_path: Path, damage: bytes) -> None:
    memory = tmp_path / "known"
    memory.write_bytes(damage)
    assert sorted(files(repo, "src/**", memory=memory)) == ["src/a.py", "src/b.py"]


# --- runs -----------------------------------------------------------------------------------------------------------


def test_a_complete_run_runs_what_is_stale_and_nothing_else(repo: Path) -> None:
    assert run(ci(), workflow_id="r").status == "complete"
    run(ci(), workflow_id="r")
    assert ran(repo, "test", "docs", "pack") == "1 1 1"
    (repo / "docs/index.md").write_text("# More\n")
    assert reasons("r", workflow=ci()) == {
        "test": "reuse: finished, definition and sources unchanged",
        "docs": "rerun: sources changed: docs/index.md",
        "pack": "reuse: finished, definition unchanged",
    }
    assert resume("r", workflow=ci()).status == "complete"
    assert ran(repo, "test", "docs", "pack") == "1 2 2"
    git("commit", "--quiet", "--all", "--message", "docs", cwd=repo)  # the same content
    run(ci(), workflow_id="r")
    assert ran(repo, "test", "docs", "pack") == "1 2 2"


def test_tasks_added_to_a_complete_run_run_when_it_is_resumed(repo: Path) -> None:
    run(ci(), workflow_id="r")
    grown = ci()
    grown.add("sign", "shell", run=note("sign"), needs=["pack"], effects="none")
    assert reasons("r", workflow=grown)["sign"] == "new: added to the workflow since"
    assert resume("r", workflow=grown).status == "complete"
    resume("r", workflow=grown)
    assert ran(repo, "test", "docs", "pack", "sign") == "1 1 1 1"


def test_a_complete_run_whose_file_is_gone_is_still_complete(repo: Path, caplog: pytest.LogCaptureFixture) -> None:
    flow = repo / "flow.yaml"
    flow.write_text("tasks: {a: {run: 'true', effects: none}}")
    run(find_workflow("flow.yaml", repo), workflow_id="r")
    flow.write_text("tasks: {a: {run: 'true', effects: none, sources: src}}")
    run(find_workflow("flow.yaml", repo), workflow_id="s")
    flow.unlink()
    assert resume("r").status == "complete"
    assert "whether tasks were added to r since is not known" in caplog.text
    with pytest.raises(WorkflowFileError):  # whether its sources changed is not known
        resume("s")


def test_a_result_without_a_record_is_stale(repo: Path) -> None:
    bare = Workflow("w")
    bare.add("a", "shell", run=note("a"), effects="none")
    run(bare, workflow_id="r")
    named = Workflow("w")
    named.add("a", "shell", run=note("a"), effects="none", sources="src/**")
    assert reasons("r", workflow=named) == {"a": "rerun: what its sources were is not on record"}
    assert run(named, workflow_id="r").status == "complete"
    run(named, workflow_id="r")
    assert ran(repo, "a") == "2"


def test_a_variable_counts_and_its_value_is_nowhere(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flow = Workflow("w")
    flow.add("a", "shell", run=note("a"), effects="none", sources=[{"env": "MODE"}, {"env": "UNSET"}])
    monkeypatch.setenv("MODE", "a-value-of-its-own")
    run(flow, workflow_id="r")
    run(flow, workflow_id="r")
    assert ran(repo, "a") == "1"
    monkeypatch.setenv("MODE", "another-value")
    monkeypatch.setenv("UNSET", "")
    assert reasons("r", workflow=flow) == {"a": "rerun: sources changed: $MODE, $UNSET"}
    (event,) = (one for one in Client().events("r") if isinstance(one, ev.TaskSources))
    assert event.sources.variables.keys() == {"MODE", "UNSET"}
    assert "a-value-of-its-own" not in repr(Client().events("r"))
    assert not [
        path for path in (repo / ".agentos").rglob("*") if path.is_file() and b"a-value-of-its-own" in path.read_bytes()
    ]


def test_equal_values_look_different_in_other_runs_and_are_still_known_in_a_fork(
    repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = Workflow("w")
    flow.add("a", "shell", run=note("a"), effects="none", sources={"env": "MODE"})
    monkeypatch.setenv("MODE", "1")
    run(flow, workflow_id="r")
    run(flow, workflow_id="s")
    fork("r", workflow=flow, workflow_id="f")
    assert ran(repo, "a") == "2"
    seen = [one for id in "rs" for one in Client().events(id) if isinstance(one, ev.TaskSources)]
    assert seen[0].sources.variables != seen[1].sources.variables
    monkeypatch.setenv("MODE", "2")
    assert reasons("f", workflow=flow) == {"a": "rerun: sources changed: $MODE"}


def test_a_preview_leaves_nothing_behind(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grow_old(monkeypatch)
    run(ci(), workflow_id="r")
    assert list((repo / ".agentos").glob("sources-*"))
    for memory in (repo / ".agentos").glob("sources-*"):
        memory.unlink()
    assert reasons("r", workflow=ci())["test"].startswith("reuse")
    assert not list((repo / ".agentos").glob("sources-*"))


def test_a_task_that_changes_its_own_sources_is_told_so_and_is_stale(repo: Path) -> None:
    flow = Workflow("w")
    flow.add("format", "shell", run="echo >> src/a.py", sources="src/**")
    run(flow, workflow_id="r")
    (warning,) = (one for one in Client().events("r") if isinstance(one, ev.TaskWarning))
    assert warning.task_id == "format"
    assert warning.message == "its sources changed: src/a.py while it ran; a resume runs it again"
    assert reasons("r", workflow=flow) == {"format": "rerun: sources changed: src/a.py"}


def test_what_a_rerun_task_generates_makes_those_after_it_stale(repo: Path) -> None:
    flow = Workflow("w")
    flow.add("gen", "shell", run=note("gen", "sed s/a/g/ src/a.py > gen.py"), sources="src/a.py")
    flow.add("compile", "shell", run=note("compile"), needs="gen", sources="gen.py", effects="none")
    flow.add("aside", "shell", run=note("aside"), needs="gen", sources="docs/**", effects="none")
    run(flow, workflow_id="r")
    (repo / "src/a.py").write_text("a = 2\n")
    assert reasons("r", workflow=flow)["compile"].startswith("reuse")  # nobody knows yet what gen will make
    assert resume("r", workflow=flow).status == "complete"
    assert ran(repo, "gen", "compile", "aside") == "2 2 1"
    (repo / "src/a.py").write_text("a = 2\n")  # another time, the same content
    resume("r", workflow=flow)
    assert ran(repo, "gen", "compile", "aside") == "2 2 1"


def test_an_isolated_task_is_compared_with_what_its_worktree_held(repo: Path) -> None:
    flow = Workflow("w")
    flow.add("gen", "shell", run="cp src/a.py gen.py", sources="src/**", isolation="worktree")
    flow.add("use", "shell", run=note("use"), needs="gen", sources="gen.py", effects="none")
    (repo / "src/a.py").write_text("a = 'uncommitted'\n")
    run(flow, workflow_id="r")
    assert set(reasons("r", workflow=flow).values()) == {"reuse: finished, definition and sources unchanged"}
    (repo / "src/a.py").write_text("a = 2\n")
    assert reasons("r", workflow=flow)["gen"] == "rerun: sources changed: src/a.py"
    assert resume("r", workflow=flow).status == "complete"
    assert (repo / "gen.py").read_text() == "a = 2\n"
    assert ran(repo, "use") == "2"
    assert set(reasons("r", workflow=flow).values()) == {"reuse: finished, definition and sources unchanged"}


def test_an_isolated_task_that_changes_its_own_sources_is_told_so(repo: Path) -> None:
    flow = Workflow("w")
    flow.add("format", "shell", run="echo >> src/a.py", sources="src/**", isolation="worktree")
    run(flow, workflow_id="r")
    (warning,) = (one for one in Client().events("r") if isinstance(one, ev.TaskWarning))
    assert warning.message == "its sources changed: src/a.py while it ran; a resume runs it again"
    assert reasons("r", workflow=flow) == {"format": "rerun: sources changed: src/a.py"}


def test_each_item_has_sources_of_its_own(repo: Path) -> None:
    flow = Workflow("w")
    flow.add(
        "each", "shell", run=["sh", "-c", "echo x >> ran-$0", "${{ item }}"], for_each=["src", "docs"], key="item",
        sources="${{ item }}/**", effects="none",
    )  # fmt: skip
    run(flow, workflow_id="r")
    (repo / "docs/index.md").write_text("# More\n")
    resume("r", workflow=flow)
    assert ran(repo, "src", "docs") == "1 2"


def test_sources_that_lead_out_of_the_root_fail_the_task(repo: Path) -> None:
    flow = Workflow("w", params={"where": "../x"})
    flow.add("a", "shell", run=note("a"), sources="${{ params.where }}", effects="none", retries=3)
    with pytest.raises(RunFailedError, match="leads out of the root"):
        run(flow, workflow_id="r")
    assert ran(repo, "a") == "0"


def test_a_fork_compares_with_its_own_worktree(repo: Path) -> None:
    run(ci(), workflow_id="r")
    newest = Client().checkpoints("r")[-1].id
    assert fork(newest, workflow=ci(), workflow_id="same").status == "complete"
    assert ran(repo, "test", "docs", "pack") == "1 1 1"
    (repo / "src/a.py").write_text("a = 2\n")
    fork(newest, workflow=ci(), workflow_id="edited")
    assert ran(repo, "test", "docs", "pack") == "2 1 2"
    resume("same", workflow=ci())
    assert ran(repo, "test", "docs", "pack") == "3 1 3"


def test_a_rollback_compares_with_what_was_on_record_then(repo: Path) -> None:
    run(ci(), workflow_id="r")
    first = Client().checkpoints("r")[0].id
    (repo / "src/a.py").write_text("a = 2\n")
    resume("r", workflow=ci())
    assert ran(repo, "test", "docs", "pack") == "2 1 2"
    assert reasons(first, workflow=ci())["test"] == "rerun: sources changed: src/a.py"
    assert resume(first, workflow=ci()).status == "complete"
    assert ran(repo, "test", "docs", "pack") == "3 1 3"


def test_the_files_that_will_be_put_back_are_what_counts(repo: Path, tmp_path: Path) -> None:
    """A file task was killed half way through: what it did to the sources of a finished task is undone first."""
    killer = Killer()

    def flow_with(work: Callable[[], Any]) -> Workflow:
        flow = Workflow("w")
        flow.add("test", "shell", run=note("test"), sources=["src/**", "made.txt"], effects="none")
        flow.add("edit", work, needs="test", effects="files")
        return flow

    async def edit() -> None:
        (repo / "src/a.py").write_text("half done\n")
        (repo / "src/b.py").unlink()
        (repo / "made.txt").write_text("half done\n")
        await killer.strike()

    place = Place(database=str(tmp_path / "runs.db"), root=repo)
    kill(place, flow_with(edit), killer, id="r")
    found = go_on(place, "r", flow_with(edit), files="restore")
    assert found.status == "complete"
    assert ran(repo, "test") == "1"


def test_it_works_outside_a_repository(tmp_path: Path, clean_env: pytest.MonkeyPatch) -> None:
    clean_env.setenv("AGENTOS_WORKFLOW_DB", str(tmp_path / "state/runs.db"))
    root = tmp_path / "plain"
    (root / "src").mkdir(parents=True)
    (root / "src/a.py").write_text("a = 1\n")
    (root / "flow.yaml").write_text("tasks: {test: {run: 'echo x >> ran-test', sources: ['src/**'], effects: none}}")

    def agentos(*words: str) -> str:
        done = run_forked("-m", "agentos", *words, cwd=root, input=b"", env=dict(os.environ))
        assert done.returncode == 0, done.stderr
        return done.stderr

    agentos("run", "flow.yaml", "--id", "r")
    assert "1 reused (test)" in agentos("run", "flow.yaml", "--id", "r")
    (root / "src/a.py").write_text("a = 2\n")
    agentos("run", "flow.yaml", "--id", "r")
    assert ran(root, "test") == "2"
