"""A repository that is somebody else's: what its settings, and the files of an export, can make us do."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from agentos.exceptions import AgentosError, RestoreError, SnapshotNotFoundError
from agentos.worktree import linked_worktrees, merge
from agentos.worktree.git import find_repository, is_tracked
from agentos.worktree.restore import git_state, restore
from agentos.worktree.restore import intent as intents
from agentos.worktree.restore.changes import preview_changes
from agentos.worktree.restore.safe_names import unsafe_path
from agentos.worktree.restore.writes import Ground
from agentos.worktree.snapshots import bundles, known_files, retention, snapshots
from agentos.worktree.snapshots.manifest import Manifest, decode, encode
from agentos.worktree.snapshots.snapshots import Snapshot
from agentos.worktree.snapshots.store import Worktree, open_worktree
from tests.cli.conftest import Agentos
from tests.conftest import git
from tests.marks import quick_first
from tests.worktree.support import RUN, back, model, snap

pytestmark = pytest.mark.attack


# --- settings that name commands ----------------------------------------------------------------------------------


class Trap:
    """A command that writes down that it ran, under every name by which git's settings can name one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "sprung"
        folder.mkdir()

    def command(self, name: str) -> str:
        file = self.folder / name
        file.write_text(f"#!/bin/sh\necho {name} >> '{self.log}'\ncat\n")
        file.chmod(0o755)
        return str(file)

    def settings(self, of: str) -> dict[str, str]:
        hooks = self.folder / f"{of}-hooks"
        hooks.mkdir()
        for hook in (
            "post-index-change",
            "reference-transaction",
            "post-checkout",
            "pre-auto-gc",
            "fsmonitor-watchman",
        ):
            (hooks / hook).symlink_to(self.command(f"{of}-hook-{hook}"))
        return {
            "core.fsmonitor": self.command(f"{of}-fsmonitor"),
            "core.hooksPath": str(hooks),
            "core.pager": self.command(f"{of}-pager"),
            "core.sshCommand": self.command(f"{of}-ssh"),
            "core.askPass": self.command(f"{of}-askpass"),
            "core.alternateRefsCommand": self.command(f"{of}-alternates"),
            "credential.helper": self.command(f"{of}-credential"),
            "diff.external": self.command(f"{of}-diff"),
            "diff.evil.textconv": self.command(f"{of}-textconv"),
            "diff.evil.command": self.command(f"{of}-diff-command"),
            "merge.evil.driver": self.command(f"{of}-merge"),
            "filter.evil.clean": self.command(f"{of}-clean"),
            "filter.evil.smudge": self.command(f"{of}-smudge"),
            "filter.more.process": self.command(f"{of}-process"),
            "filter.more.required": "true",
            "gpg.program": self.command(f"{of}-gpg"),
            "alias.status": f"!{self.command(f'{of}-alias')}",
            "submodule.recurse": "true",
            "status.submoduleSummary": "true",
            "index.threads": "1",
            # A partial clone that lacks an object asks its remote for it.
            "extensions.partialClone": "evil",
            "remote.evil.promisor": "true",
            "remote.evil.url": str(self.folder),
            "remote.evil.uploadpack": self.command(f"{of}-uploadpack"),
            "core.repositoryFormatVersion": "1",
            "protocol.allow": "always",
        }

    def arm(self, root: Path, of: str) -> None:
        """By an included file, which is one more way to hide it."""
        common = root / git("rev-parse", "--git-common-dir", cwd=root)
        for name, value in self.settings(of).items():
            target = common / "config" if name.startswith(("extensions", "core.repo")) else self.folder / f"{of}.inc"
            subprocess.run(["git", "config", "--file", target, name, value], check=True)
        subprocess.run(
            ["git", "config", "--file", common / "config", "include.path", self.folder / f"{of}.inc"], check=True
        )
        (common / "info").mkdir(exist_ok=True)
        (common / "info/attributes").write_text("* filter=evil diff=evil merge=evil\n*.py filter=more\n")
        (root / ".gitattributes").write_text("* filter=evil diff=evil merge=evil\n*.py filter=more\n")

    @property
    def sprung(self) -> list[str]:
        return sorted(set(self.log.read_text().split())) if self.log.exists() else []


@pytest.fixture
def trap(tmp_path: Path) -> Trap:
    return Trap(tmp_path / "trap")


def make_inside(root: Path) -> None:
    """A repository with a file, committed."""
    root.mkdir(parents=True)
    git("init", "--quiet", "--initial-branch=main", cwd=root)
    (root / "inside.py").write_text("inside\n")
    git("add", "--all", cwd=root)
    git("-c", "user.name=T", "-c", "user.email=t@example.invalid", "commit", "--quiet", "-m", "x", cwd=root)


def add_submodule(root: Path, source: Path, path: str) -> None:
    git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(source), path, cwd=root)


def everything(root: Path, tmp_path: Path) -> Iterator[str]:
    """Every way in which we call git, one after the other."""
    worktree = open_worktree(root)
    yield "open"
    first = snap(worktree)
    yield "take"
    for file in root.rglob("*.py"):
        file.write_text("changed\n")
        os.utime(file, (1, 1))
    (root / "new.py").write_text("new\n")
    second = snap(worktree, "second")
    yield "take again"
    snapshots.is_unchanged(worktree, first)
    snapshots.changed_since(worktree, first)
    yield "compare"
    snapshots.tree_patch(worktree, first.tree, second.tree)
    yield "patch"
    now = restore.capture_current(worktree, first, workflow_id=RUN, name="look")
    preview_changes(worktree, first, now)
    yield "foresee"
    done = back(worktree, first)
    yield "restore"
    restore.undo(worktree, snapshots.find(worktree, done.undo.id), workflow_id=RUN)
    yield "undo"
    aside = linked_worktrees.make_linked(worktree, second, tmp_path / "aside", workflow_id=RUN, label="x")
    yield "linked worktree"
    (aside.root / "aside.py").write_text("aside\n")
    snap(aside, "aside")
    yield "take in a linked worktree"
    linked_worktrees.remove_linked(worktree, aside.root)
    yield "remove a linked worktree"
    git_state.restore_git(worktree, first, expected=snapshots.take(worktree, workflow_id=RUN, name="h").head)
    yield "restore HEAD and index"
    with pytest.raises(AgentosError):
        git_state.check_git(worktree, _with_head(first, "1" * 40))
    yield "a commit that is missing"
    bundles.write_bundle(worktree, RUN, tmp_path / "bundle")
    bundles.take_bundle(worktree, tmp_path / "bundle", came_as=RUN, workflow_id="other")
    yield "bundle"
    retention.purge(worktree, "new.py")
    retention.collect(worktree)
    yield "housekeeping"
    repository = find_repository(root)
    is_tracked(repository, Path("src"))
    yield "find the repository"


def _with_head(snapshot: Snapshot, oid: str) -> Snapshot:
    manifest = decode(encode(snapshot.manifest))
    import msgspec

    head = msgspec.structs.replace(manifest.head, oid=oid)
    return msgspec.structs.replace(snapshot, manifest=msgspec.structs.replace(manifest, head=head))


def test_no_setting_of_a_repository_starts_a_command_of_ours(root: Path, tmp_path: Path, trap: Trap) -> None:
    """Of the main repository, of a submodule, of one inside that, and of a repository that lies about."""
    make_inside(tmp_path / "inner")
    make_inside(tmp_path / "library")
    add_submodule(tmp_path / "library", tmp_path / "inner", "deeper")
    git("-c", "user.name=T", "-c", "user.email=t@example.invalid", "commit", "-qm", "y", cwd=tmp_path / "library")
    add_submodule(root, tmp_path / "library", "lib")
    git("-c", "protocol.file.allow=always", "submodule", "--quiet", "update", "--init", "--recursive", cwd=root)
    git("commit", "--quiet", "-m", "with a submodule", cwd=root)
    make_inside(root / "lying")
    for place, of in (
        (root / "lib/deeper", "deeper"),
        (root / "lib", "lib"),
        (root / "lying", "lying"),
        (root, "main"),
    ):
        trap.arm(place, of)
    for what in everything(root, tmp_path):
        assert not trap.sprung, what


def test_work_in_a_repository_inside_another_is_still_seen(root: Path, tmp_path: Path, worktree: Worktree) -> None:
    make_inside(tmp_path / "inner")
    make_inside(tmp_path / "library")
    add_submodule(tmp_path / "library", tmp_path / "inner", "deeper")
    git("-c", "user.name=T", "-c", "user.email=t@example.invalid", "commit", "-qm", "y", cwd=tmp_path / "library")
    add_submodule(root, tmp_path / "library", "lib")
    git("-c", "protocol.file.allow=always", "submodule", "--quiet", "update", "--init", "--recursive", cwd=root)
    git("-C", "lib", "update-index", "--split-index", cwd=root)
    assert not snap(worktree).partial
    (root / "lib/deeper/inside.py").write_text("changed\n")
    assert [left.path for left in snap(worktree, "two").partial] == ["lib"]
    (root / "lib/deeper/inside.py").write_text("inside\n")
    assert not snap(worktree, "three").partial
    (root / "lib/.git").write_text("gitdir: /nowhere\n")
    assert [left.path for left in snap(worktree, "four").partial] == ["lib"]


def test_a_repository_that_appears_while_a_run_lives(root: Path, worktree: Worktree, trap: Trap) -> None:
    """As one that a task makes, moves and removes between two snapshots."""
    snap(worktree)
    make_inside(root / "sub")
    trap.arm(root / "sub", "sub")
    assert "sub" in snap(worktree, "two").manifest.repositories
    (root / "sub/inside.py").write_text("changed\n")
    os.utime(root / "sub/inside.py", (1, 1))
    assert [left.path for left in snap(worktree, "three").partial] == ["sub"]
    (root / "mine").write_text("x")
    snap(worktree, "four")
    (root / "sub").rename(root / "moved")
    assert list(snap(worktree, "five").manifest.repositories) == ["moved"]
    assert not trap.sprung


def test_the_settings_of_the_store_are_ours(root: Path, worktree: Worktree, trap: Trap) -> None:
    """A task may write to the private store as well: whatever it put there is gone before the next snapshot."""
    snap(worktree)
    store = worktree.store
    for name, value in trap.settings("store").items():
        subprocess.run(["git", "config", "--file", store / "config", name, value], check=True)
    (store / "info/attributes").write_text("* filter=evil\n")
    for file in root.rglob("*.py"):
        file.write_text("changed\n")
    snap(worktree, "second")
    assert not trap.sprung


def test_a_task_cannot_answer_its_own_gate_through_git(agentos: Agentos, root: Path, home: Path) -> None:
    """The driver's git would start the command without the mark of the attempt, and so as if by a human's hand."""
    evil = root.parent / "evil"
    (root / "flow.yaml").write_text(
        json.dumps(
            {
                "name": "gated",
                "tasks": {
                    "prepare": {"run": f"sh {evil}"},
                    "more": {"needs": "prepare", "run": "echo more > more.txt"},
                    "ship": {"needs": "more", "run": "touch ../shipped", "approve": "Ship it?"},
                },
            }
        )
    )
    git("add", "-A", cwd=root)
    git("commit", "--quiet", "-m", "flow", cwd=root)
    answer = root.parent / "answer"
    answer.write_text("#!/bin/sh\nagentos approve gated-1 approve:ship >/dev/null 2>&1; touch ../ran; cat\n")
    answer.chmod(0o755)
    evil.write_text(
        "git init -q sub && cd sub && echo x > x && git add x && git -c user.name=x -c user.email=x@x commit -qm x\n"
        f"git config core.fsmonitor {answer}; git config filter.e.clean {answer}; echo '* filter=e' > .gitattributes\n"
        f"cd ..; git config core.fsmonitor {answer}; git config filter.e.clean {answer}; echo y > sub/x\n"
        "echo '* filter=e' > .gitattributes\n"
    )
    done = agentos("run", "flow.yaml", "--id", "gated-1", "-q", cwd=root)
    assert done.code != 0, "it waits for an answer"
    assert not (root / "ran").exists()
    assert not (root.parent / "ran").exists()
    assert not (root.parent / "shipped").exists()


# --- an export that somebody made up ------------------------------------------------------------------------------

BAD = [
    "../outside",
    "a/../../outside",
    "/tmp/outside",
    "",
    "a//b",
    "./a",
    ".git",
    ".git/hooks",
    ".GIT/hooks",
    "sub/.git",
    "git~1",
    ".git ./x",
    ".git::$INDEX_ALLOCATION",
    ".g\u200cit/x",
    ".agentos",
    ".AgentOS/issue_workflow.db",
]


@pytest.mark.parametrize("path", BAD)
def test_names_that_lead_elsewhere_are_known(path: str) -> None:
    assert unsafe_path(["fine", path, "fine/too"]) == path


@pytest.mark.parametrize(
    "path", [".gitignore", ".gitattributes", "a/.github/x", "digit", "x.git", "...", "a..b", "git~2"]
)
def test_ordinary_names_are_let_through(path: str) -> None:
    assert unsafe_path([path]) is None


def _forged(worktree: Worktree, snapshot: Snapshot, **fields: object) -> Snapshot:
    """The snapshot with another manifest, as a bundle could bring it."""
    said = json.loads(encode(snapshot.manifest)) | fields
    message = json.dumps(said)
    oid = known_files.write_commit(worktree, snapshot.tree, (), message, 0)
    worktree.store_git().ask("update-ref", snapshot.ref, oid)
    return Snapshot(id=oid, tree=snapshot.tree, manifest=snapshot.manifest, ref=snapshot.ref)


@pytest.mark.parametrize("path", quick_first(BAD))
@pytest.mark.parametrize("field", ["empty", "modes", "odd_folders"])
def test_a_forged_manifest_is_not_read(root: Path, worktree: Worktree, path: str, field: str) -> None:
    first = snap(worktree)
    fields: dict[str, object] = {"empty": [path]}
    if field == "modes":
        fields = {"modes": {"odd": {path: 0o777}}}
    elif field == "odd_folders":
        fields = {"modes": {"odd_folders": [path]}}
    forged = _forged(worktree, first, **fields)
    with pytest.raises(SnapshotNotFoundError, match="manifest"):
        snapshots.find(worktree, forged.id)


@pytest.mark.parametrize("field", ["ignored", "repositories", "purged", "partial"])
def test_no_list_of_a_manifest_leads_out(root: Path, worktree: Worktree, field: str) -> None:
    value: object = {"repositories": {"../x": None}, "partial": [["../x", "why"]]}.get(field, ["../x"])
    if field == "partial":
        value = [{"path": "../x", "why": "why"}]
    forged = _forged(worktree, snap(worktree), **{field: value})
    with pytest.raises(SnapshotNotFoundError, match="manifest"):
        snapshots.find(worktree, forged.id)


@pytest.mark.parametrize(
    "fields",
    [
        {"replaced_by": "--output=../planted"},
        {"index": "--output=../planted"},
        {"head": {"oid": "--help"}},
        {"head": {"ref": "--stdin", "oid": None}},
        {"head": {"ref": "refs/../../HEAD"}},
        {"repositories": {"sub": "--help"}},
        {"at": "soon"},
        {"empty": ["a\0b"]},
    ],
    ids=str,
)
def test_what_git_would_take_for_an_option_is_not_read(
    root: Path, worktree: Worktree, fields: dict[str, object]
) -> None:
    forged = _forged(worktree, snap(worktree), **fields)
    with pytest.raises(SnapshotNotFoundError, match="manifest"):
        snapshots.find(worktree, forged.id)


def _blob(oid: str) -> merge.Version:
    return merge.Version(mode="100644", oid=oid)


@pytest.mark.parametrize("given", ["--output=../planted", "--help", "HEAD", "main"])
def test_ids_of_an_imported_journal_are_ids(root: Path, worktree: Worktree, given: str) -> None:
    first = snap(worktree)
    asks: list[Callable[[], object]] = [
        lambda: snapshots.find(worktree, given),
        lambda: restore.apply_changes(worktree, first.tree, given, workflow_id=RUN),
        lambda: restore.apply_changes(worktree, given, first.tree, workflow_id=RUN),
        lambda: snapshots.tree_patch(worktree, first.tree, given),
        lambda: merge.versions_in(worktree, given),
        lambda: merge.merge(worktree, first.tree, [("a", given), ("b", first.tree)]),
        lambda: merge.settle(
            worktree, merge.MergeSide("here", None, _blob(given)), [merge.MergeSide("a", None, _blob(first.tree))]
        ),
        lambda: merge.changes_between(worktree, first.tree, given, "a"),
    ]
    for ask in asks:
        with pytest.raises(SnapshotNotFoundError):
            ask()
    assert not (root.parent / "planted").exists()


def test_bits_that_lend_rights_are_not_set(root: Path, worktree: Worktree) -> None:
    forged = _forged(worktree, snap(worktree), modes={"file": 0o4777, "odd": {"run.sh": 0o6755}})
    (root / "run.sh").chmod(0o700)
    (root / "README").write_text("changed")
    back(worktree, snapshots.find(worktree, forged.id))
    assert (root / "run.sh").stat().st_mode & 0o7777 == 0o755
    assert (root / "README").stat().st_mode & 0o7000 == 0


@pytest.mark.parametrize(
    "path", quick_first([".agentos/issue_workflow.db", "git~1", ".git ./hooks/x", ".g\u200cit/config"])
)
def test_a_forged_tree_is_not_written(root: Path, worktree: Worktree, path: str, tmp_path: Path) -> None:
    """`..` and `.git` in a tree git refuses itself; the rest is ours to refuse."""
    first = snap(worktree)
    store = worktree.store_git(index=tmp_path / "index")
    blob = store.line("hash-object", "-w", "--stdin", stdin=b"evil")
    store.ask("read-tree", first.tree)
    store.ask("update-index", "-z", "--index-info", stdin=f"100644 {blob}\t{path}\0".encode())
    tree = store.line("write-tree")
    forged = Snapshot(id=first.id, tree=tree, manifest=first.manifest, ref=first.ref)
    before = model(root)
    with pytest.raises(RestoreError, match="no snapshot may"):
        back(worktree, forged)
    with pytest.raises(AgentosError, match="no snapshot may"):
        linked_worktrees.make_linked(worktree, forged, tmp_path / "aside", workflow_id=RUN, label="x")
    assert model(root) == before
    assert not (root / ".agentos").exists()


@pytest.mark.parametrize("field", ["changes", "modes_of", "make_folders", "remove_folders", "locked"])
def test_a_forged_note_of_a_restore_is_not_followed(root: Path, worktree: Worktree, field: str) -> None:
    first = snap(worktree)
    values: dict[str, object] = {"changes": [{"path": "../x", "mode": "100644", "oid": ""}], "locked": {"../x": 0o777}}
    note: dict[str, object] = {"workflow_id": RUN, "target": first.id, "undo": first.id, "changes": []}
    note[field] = values.get(field, ["../x"])
    (worktree.folder / "restoring.json").write_text(json.dumps(note))
    with pytest.raises(RestoreError, match="cannot be used"):
        restore.finish_interrupted(worktree)
    assert restore.give_up_interrupted(worktree) == ""
    assert intents.find_interrupted(worktree) is None


def test_a_crafted_export_makes_nothing_outside(agentos: Agentos, root: Path, home: Path, tmp_path: Path) -> None:
    """The whole way: an export with a forged snapshot is imported, and its checkpoint put back."""
    (root / "flow.yaml").write_text(json.dumps({"name": "f", "tasks": {"a": {"run": "echo a > a.txt"}}}))
    git("add", "-A", cwd=root)
    git("commit", "--quiet", "-m", "flow", cwd=root)
    assert agentos("run", "flow.yaml", "--id", "run-1", "-q", cwd=root).code == 0
    worktree = open_worktree(root)
    outside = tmp_path / "outside"
    for ref, oid in snapshots.snapshot_refs(worktree, "run-1").items():
        one = snapshots.read(worktree.store_git(), oid, oid, ref=ref)
        _forged(worktree, one, empty=["../outside/made", str(outside)], modes={"odd": {"../victim": 0o4777}})
    (tmp_path / "victim").write_text("x")
    (tmp_path / "victim").chmod(0o600)
    done = agentos("export", "run-1", "--files", "--output", str(tmp_path / "run.export"), cwd=root)
    assert done.code == 0, done.err
    git("clone", "--quiet", str(root), str(tmp_path / "clone"), cwd=tmp_path)
    done = agentos("import", str(tmp_path / "run.export"), cwd=tmp_path / "clone")
    assert done.code != 0
    assert "manifest" in done.err
    assert agentos("list", "--json", cwd=tmp_path / "clone").out.strip() in ("[]", "")
    assert not outside.exists()
    assert (tmp_path / "victim").stat().st_mode & 0o7777 == 0o600


# --- links that are planted in between ----------------------------------------------------------------------------

WRITES: dict[str, Callable[[Ground], object]] = {
    "write": lambda ground: ground.write("src/planted", [b"x"], executable=False),
    "link": lambda ground: ground.link("src/planted", b"x"),
    "remove": lambda ground: ground.remove("src/victim"),
    "folder": lambda ground: ground.make_folder("src/made"),
    "deep folder": lambda ground: ground.make_folder("src/made/deeper"),
    "no folder": lambda ground: ground.remove_empty("src/hollow"),
    "bits": lambda ground: ground.set_bits("src/victim", 0o777),
}


@pytest.mark.parametrize("act", WRITES.values(), ids=WRITES)
def test_nothing_is_done_through_a_link(root: Path, tmp_path: Path, act: Callable[[Ground], object]) -> None:
    outside = tmp_path / "outside"
    (outside / "hollow").mkdir(parents=True)
    (outside / "victim").write_text("mine")
    (outside / "victim").chmod(0o600)
    before = model(outside)
    (root / "src").rename(root / "elsewhere")
    (root / "src").symlink_to(outside)
    with Ground(root) as ground, suppress(NotADirectoryError):
        act(ground)
    assert model(outside) == before


def test_included_files_are_not_copied_through_a_link(root: Path, worktree: Worktree, tmp_path: Path) -> None:
    """The snapshot has a link where the worktree has a folder by now."""
    (tmp_path / "outside").mkdir()
    (root / ".worktreeinclude").write_text("*.log\n")
    (root / "made").symlink_to(tmp_path / "outside")
    first = snap(worktree)
    (root / "made").unlink()
    (root / "made/deep").mkdir(parents=True)
    (root / "made/deep/x.log").write_text("x")
    (root / "y.log").write_text("y")
    (root / "y.log").chmod(0o640)
    (root / "z.log").symlink_to(tmp_path / "secret")
    aside = linked_worktrees.make_linked(worktree, first, tmp_path / "aside", workflow_id=RUN, label="x")
    assert list((tmp_path / "outside").iterdir()) == []
    assert (aside.root / "y.log").read_text() == "y"
    assert (aside.root / "y.log").stat().st_mode & 0o777 == 0o640
    assert (aside.root / "z.log").is_symlink()


def test_a_link_in_the_place_of_a_file_is_not_followed(root: Path, tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "victim").chmod(0o600)
    (root / "planted").symlink_to(tmp_path / "victim")
    with Ground(root) as ground:
        with pytest.raises(FileExistsError):
            ground.write("planted", [b"x"], executable=False)
        ground.set_bits("planted", 0o777)
        ground.remove("planted")
    assert (tmp_path / "victim").read_text() == "mine"
    assert (tmp_path / "victim").stat().st_mode & 0o777 == 0o600


@pytest.mark.full
def test_somebody_who_plants_links_all_the_time_gets_nothing(root: Path, worktree: Worktree, tmp_path: Path) -> None:
    """A folder and a link to elsewhere change places while files in it are put back, again and again."""
    outside, link = tmp_path / "outside", tmp_path / "link"
    outside.mkdir()
    link.symlink_to(outside)
    for number in range(100):
        (root / f"src/{number}").write_text("captured")
    first = snap(worktree)
    for number in range(100):
        (root / f"src/{number}").write_text("half")
    stop = threading.Event()

    def plant() -> None:
        while not stop.is_set():
            with suppress(FileNotFoundError):
                _swap(root / "src", link)

    planting = threading.Thread(target=plant)
    planting.start()
    try:
        with suppress(AgentosError):  # it says that something else writes here
            back(worktree, first)
    finally:
        stop.set()
        planting.join()
    assert list(outside.iterdir()) == []


def _swap(one: Path, other: Path) -> None:
    """Two names change places at once, as renameat2 does it."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(-100, os.fsencode(one), -100, os.fsencode(other), 2) != 0:
        raise OSError(ctypes.get_errno(), "renameat2")


def test_manifests_of_today_are_read(root: Path, worktree: Worktree) -> None:
    (root / "odd \\ name").write_text("x")
    (root / "hollow/deep").mkdir(parents=True)
    first = snap(worktree)
    found = snapshots.find(worktree, first.id).manifest
    assert isinstance(found, Manifest)
    assert found == first.manifest
