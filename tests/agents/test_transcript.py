"""The agent's own transcript is copied beside the log of its attempt: masked, private, within bounds."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentos import Client, Workflow, run
from agentos.machine.events import Usage
from agentos.secrets import Masker
from agentos.tasks.agents.adapters.adapter import TranscriptLocation
from agentos.tasks.agents.adapters.known import AGENTS
from agentos.tasks.agents.assignment import SUFFIX, SessionTokens, copy_transcript, transcript_of
from tests.agents.support import agent_spec
from tests.agents.test_command import Log, shaped_like_codex
from tests.unit.tasks.support import RecordingHost, perform

ID = "0dfc6244-350e-4453-a470-0442036bc57a"
SECRET = 'hunter2-"quoted"-and-long'
RESULT = {"type": "result", "subtype": "success", "result": "Done.", "num_turns": 1}


def writes_a_transcript(folder: Path, *lines: Any, status: int = 0, then: str = "") -> dict[str, str]:
    """A claude that keeps these lines of its session and answers; the environment that leads to it."""
    (folder / "package.json").write_text('{"bin": {}, "version": "2.1"}')
    program = folder / "claude"
    program.write_text(
        f"#!{sys.executable}\nimport json, os, sys, time\n"
        "place = os.path.join(os.environ['CLAUDE_CONFIG_DIR'], 'projects', '-repo')\n"
        "os.makedirs(place, exist_ok=True)\n"
        "id = sys.argv[sys.argv.index('--session-id') + 1]\n"
        f"with open(os.path.join(place, f'{{id}}.jsonl'), 'w') as file:\n"
        f"    for line in {list(lines)!r}: file.write(json.dumps(line) + chr(10))\n"
        f"{then}\nprint(json.dumps({RESULT!r}) if not {status} else '')\nsys.exit({status})\n"
    )
    program.chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin", "CLAUDE_CONFIG_DIR": str(folder / "settings")}


def last_line(log: Log) -> Any:
    return json.loads(log.data.decode().splitlines()[-1])["agent_ended"]


def test_a_transcript_is_copied_without_secrets_and_the_log_names_it(tmp_path: Path) -> None:
    env = writes_a_transcript(tmp_path, {"role": "user", "text": f"use {SECRET}"}, {"role": "assistant"})
    log = Log()
    spec = agent_spec(tmp_path, "claude", env=env, log=log)
    perform(msgspec.structs.replace(spec, masker=Masker([("TOKEN", SECRET)])))

    first, second = log.beside[SUFFIX].decode().splitlines()
    assert json.loads(first) == {"role": "user", "text": "use [secret:TOKEN]"}
    assert json.loads(second) == {"role": "assistant"}
    copied = last_line(log)["transcript"]
    assert copied["file"] == f"t.1{SUFFIX}"
    assert (copied["left_out"], Path(copied["source"]).parent.name) == (0, "-repo")


@pytest.mark.parametrize(("status", "then"), [(1, ""), (0, "time.sleep(600)")], ids=["failed", "timeout"])
def test_it_is_copied_however_the_attempt_ended(tmp_path: Path, status: int, then: str) -> None:
    env = writes_a_transcript(tmp_path, {"role": "user"}, status=status, then=then)
    log = Log()
    outcome = perform(agent_spec(tmp_path, "claude", env=env, log=log, timeout_s=2))

    assert outcome.error is not None
    assert log.beside[SUFFIX] == b'{"role": "user"}\n'


def test_of_one_that_is_too_long_the_end_is_kept_and_a_note_says_so(tmp_path: Path) -> None:
    lines = [{"n": number} for number in range(1_000)]
    log = Log(limit=100)
    perform(agent_spec(tmp_path, "claude", env=writes_a_transcript(tmp_path, *lines), log=log))

    note, *kept = map(json.loads, log.beside[SUFFIX].splitlines())
    assert kept == lines[-len(kept) :]
    assert 90 < len("".join(json.dumps(line) + "\n" for line in kept)) <= 100
    left_out = last_line(log)["transcript"]["left_out"]
    assert note["agentos_note"].startswith(f"{left_out} bytes were left out")


def test_of_one_line_that_is_too_long_only_the_note_is_kept(tmp_path: Path) -> None:
    source = tmp_path / "long.jsonl"
    source.write_bytes(b"x" * 3_000_000)
    log = Log(limit=100)
    copied = copy_transcript(str(source), log, Masker())
    assert copied is not None
    assert copied.left_out == 3_000_000
    assert len(log.beside[SUFFIX].splitlines()) == 1


def test_where_there_is_none_nothing_is_said(tmp_path: Path) -> None:
    path = shaped_like_codex(tmp_path, {"type": "thread.started", "thread_id": ID}, lasts_s=0)
    log, host = Log(), RecordingHost()
    outcome = perform(agent_spec(tmp_path, "codex", env={"PATH": path, "CODEX_HOME": str(tmp_path)}, log=log), host)

    assert outcome.error is not None
    assert "(no_result)" in outcome.error.text
    assert log.beside == {}
    assert last_line(log)["transcript"] is None
    assert outcome.warnings == ()


@pytest.mark.parametrize(
    ("agent", "env", "place"),
    [
        ("claude", {"CLAUDE_CONFIG_DIR": "S"}, f"S/projects/-repo/{ID}.jsonl"),
        ("claude", {}, f".claude/projects/-repo/{ID}.jsonl"),
        ("codex", {"CODEX_HOME": "S"}, f"S/sessions/2026/11/15/rollout-2026-11-15T18-09-10-{ID}.jsonl"),
        ("codex", {}, f".codex/sessions/2026/11/15/rollout-2026-11-15T18-09-10-{ID}.jsonl"),
        ("gemini", {"GEMINI_CLI_HOME": "S"}, f"S/.gemini/tmp/repo/chats/session-2026-{ID[:8]}.jsonl"),
        ("gemini", {}, f".gemini/tmp/repo/chats/session-2026-{ID[:8]}.json"),
        ("copilot", {"COPILOT_HOME": "S"}, f"S/session-state/{ID}/events.jsonl"),
        ("copilot", {}, f".copilot/session-state/{ID}/events.jsonl"),
    ],
)
def test_each_agent_keeps_it_where_its_variable_says(
    agent: str, env: dict[str, str], place: str, tmp_path: Path
) -> None:
    path = tmp_path / "[home]" / place
    path.parent.mkdir(parents=True)
    path.write_text(f'{{"sessionId": "{ID}"}}\n')
    env = {"HOME": str(tmp_path / "[home]"), **{name: str(tmp_path / "[home]" / value) for name, value in env.items()}}

    assert transcript_of(AGENTS[agent].TRAITS.transcript, ID, env) == str(path)
    assert transcript_of(AGENTS[agent].TRAITS.transcript, f"{ID[:-1]}b", env) == ""


@pytest.mark.parametrize("session", ["", "*", "../../secret", f"{ID}/../x", "a" * 101, f"{ID}\n"])
def test_an_id_that_leads_elsewhere_finds_nothing(session: str, tmp_path: Path) -> None:
    (tmp_path / "sessions").mkdir()
    (tmp_path / "secret.jsonl").write_text("{}")
    assert transcript_of(TranscriptLocation("", str(tmp_path / "sessions"), "{id}.jsonl"), session, {"HOME": "/"}) == ""


def test_links_and_pipes_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("{}")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe", "none", "."):
        assert copy_transcript(str(tmp_path / name), Log(), Masker()) is None


def test_in_a_run_it_lies_beside_the_log_and_goes_with_the_run(
    tmp_git_repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in writes_a_transcript(tmp_path, {"role": "user"}).items():
        monkeypatch.setenv(name, value)
    flow = Workflow("one")
    flow.add("fix/it", "agent", agent="claude", prompt="Do it.", effects="none")
    assert run(flow, workflow_id="w1", repo=tmp_git_repo).status == "complete"

    folder = tmp_git_repo / ".agentos" / "logs" / "w1"
    assert sorted(path.name for path in folder.iterdir()) == ["fix%2Fit.1.log", f"fix%2Fit.1{SUFFIX}"]
    kept = folder / f"fix%2Fit.1{SUFFIX}"
    assert kept.read_text() == '{"role": "user"}\n'
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    Client(tmp_git_repo).delete("w1")
    assert not folder.exists()


def test_a_copy_that_cannot_be_written_is_a_warning(
    tmp_git_repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in writes_a_transcript(tmp_path, {"role": "user"}).items():
        monkeypatch.setenv(name, value)
    (tmp_git_repo / ".agentos" / "logs" / "w1").mkdir(parents=True, mode=0o700)
    (tmp_git_repo / ".agentos" / "logs" / "w1" / f"fix.1{SUFFIX}").mkdir()
    flow = Workflow("one")
    flow.add("fix", "agent", agent="claude", prompt="Do it.", effects="none")
    result = run(flow, workflow_id="w1", repo=tmp_git_repo)

    assert result.status == "complete"
    told = [event for event in Client(tmp_git_repo).events("w1") if "cannot be kept" in str(event)]
    assert len(told) == 1


def test_what_a_session_of_codex_has_used_is_read_as_its_rollout_grows(tmp_path: Path) -> None:
    """A copy counts on from what it is a copy of; a line that is only half there is read later."""
    session = "01a1ed36-7399-7052-a005-69da36dd6270"
    folder = tmp_path / "sessions" / "2026" / "11" / "18"
    folder.mkdir(parents=True)
    rollout = folder / f"rollout-2026-11-18T05-52-11-{session}.jsonl"

    def counted(tokens: int) -> str:
        total = {"input_tokens": tokens, "output_tokens": 5, "cached_input_tokens": 1}
        payload = {"type": "token_count", "info": {"total_token_usage": total}}
        return json.dumps({"type": "event_msg", "payload": payload}) + "\n"

    tokens = SessionTokens(AGENTS["codex"].TRAITS, {"CODEX_HOME": str(tmp_path)})
    assert tokens.read(session) is None
    rollout.write_text('{"type": "session_meta"}\n' + counted(30) + counted(30) + counted(40)[:-9])
    assert tokens.read(session) == Usage(input_tokens=30, output_tokens=5, cached_tokens=1, calls=1)
    rollout.write_text(rollout.read_text()[: -len(counted(40)[:-9])] + counted(40))
    assert tokens.read(session) == Usage(input_tokens=40, output_tokens=5, cached_tokens=1, calls=2)
    assert SessionTokens(AGENTS["opencode"].TRAITS, {}).read(session) is None


def test_what_a_session_used_is_added_up_over_messages_that_are_told_again_and_grow(tmp_path: Path) -> None:
    def claude(id: str, output: int) -> dict[str, Any]:
        usage = {"input_tokens": 10, "cache_read_input_tokens": 4, "output_tokens": output}
        return {"type": "assistant", "message": {"id": id, "usage": usage}}

    def gemini(id: str, output: int) -> dict[str, Any]:
        return {"id": id, "type": "gemini", "tokens": {"input": 14, "output": output, "cached": 4, "thoughts": 0}}

    def used_in(agent: str, name: str, lines: list[Any]) -> Usage | None:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        home = {"CLAUDE_CONFIG_DIR": str(tmp_path), "GEMINI_CLI_HOME": str(tmp_path)}
        return SessionTokens(AGENTS[agent].TRAITS, home).read(ID)

    told = Usage(input_tokens=28, output_tokens=8, cached_tokens=8, calls=2)
    lines: list[Any] = [{"type": "user"}, claude("m1", 1), claude("m1", 5), "odd", claude("m2", 3), claude("m1", 5)]
    assert used_in("claude", f"projects/p/{ID}.jsonl", lines) == told
    lines = [{"sessionId": ID}, {"type": "user", "id": "u1"}, gemini("m1", 5), gemini("m1", 5)]
    lines += [{"$set": {"messages": [{"id": "u1"}, gemini("m1", 5), gemini("m2", 3)]}}]
    assert used_in("gemini", f".gemini/tmp/p/chats/session-now-{ID[:8]}.jsonl", lines) == told
