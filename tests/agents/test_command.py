"""Any other program as an agent: the prompt on stdin, the answer on stdout; and what holds for every agent."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentos.dag.define.model_calls import VerifyCommand
from agentos.exceptions import LeaseLostError
from agentos.machine.events import AgentSession
from agentos.machine.inputs import AttemptResult
from agentos.secrets import Masker
from agentos.tasks.agents import watcher
from agentos.tasks.attempt import VerifySpec
from agentos.tasks.llm.model_settings import CallLimits, ModelSettings
from agentos.tasks.runner import performers
from tests.agents.support import agent_spec
from tests.unit.tasks.support import RecordingHost, cancel_when, is_alive, output_of, perform, pid_in


def program(folder: Path, text: str) -> str:
    path = folder / "performer.py"
    path.write_text(f"#!{sys.executable}\nimport os, sys, time\n{text}\n")
    path.chmod(0o755)
    return str(path)


def shaped_like_codex(folder: Path, event: Mapping[str, Any], lasts_s: float = 600) -> str:
    """A program of that name that says one thing; the PATH that leads to it."""
    (folder / "package.json").write_text('{"bin": {}, "version": "0.1"}')
    path = folder / "codex"
    said = json.dumps(event)
    path.write_text(f"#!{sys.executable}\nimport time\nprint('{said}', flush=True)\ntime.sleep({lasts_s})\n")
    path.chmod(0o755)
    return f"{folder}:/usr/bin:/bin"


class Log:
    """An AttemptLog that remembers."""

    def __init__(self, limit: int = 1 << 20) -> None:
        self.data = b""
        self.limit = limit
        self.beside: dict[str, bytes] = {}
        self.synced = 0

    def sync(self) -> None:
        self.synced += 1

    def keep(self, suffix: str, data: Iterable[bytes]) -> str:
        self.beside[suffix] = b"".join(data)
        return f"t.1{suffix}"

    def write(self, stream: str, data: bytes) -> None:
        self.data += data


def test_the_prompt_is_its_input_and_what_it_prints_the_answer(tmp_path: Path) -> None:
    agent = program(tmp_path, "prompt = sys.stdin.read()\nprint(f'{len(prompt)} characters')\nprint(prompt[-9:])")
    host = RecordingHost()
    outcome = perform(agent_spec(tmp_path, "command", agent, prompt="é" * 1_000_000 + "\nThe end."), host)

    assert output_of(outcome)["text"] == "1000009 characters\n\nThe end."
    assert host.lines("stdout") == ["1000009 characters", "", "The end."]
    assert host.sessions == []


def test_an_agent_has_no_colours_its_attempt_and_its_settings_in_its_environment(tmp_path: Path) -> None:
    names = "['NO_COLOR', 'AGENTOS_ATTEMPT_ID', 'AGENTOS_AGENT_MODEL', 'AGENTOS_AGENT_PERMISSIONS']"
    agent = program(tmp_path, f"import json\nprint(json.dumps([os.environ[name] for name in {names}]))")
    spec = agent_spec(tmp_path, "command", agent, model="m-1", permissions="read")

    assert json.loads(output_of(perform(spec))["text"]) == ["1", spec.attempt_id, "m-1", "read"]


def test_an_agent_that_clears_the_temporary_folder_away_has_done_its_work(tmp_path: Path) -> None:
    clears = "import shutil\nshutil.rmtree(os.path.dirname(os.readlink('/proc/self/fd/0')))\nprint('done')"
    outcome = perform(agent_spec(tmp_path, "command", program(tmp_path, clears)))

    assert output_of(outcome)["text"] == "done"


@pytest.mark.parametrize(("status", "word", "retryable"), [(75, "api_rate", True), (3, "agent_error", True)])
def test_an_exit_code_other_than_0_is_a_failure(tmp_path: Path, status: int, word: str, retryable: bool) -> None:
    agent = program(tmp_path, f"print('half', file=sys.stderr)\nsys.exit({status})")
    outcome = perform(agent_spec(tmp_path, "command", agent))

    assert outcome.error is not None
    assert f"({word}): half" in outcome.error.text
    assert outcome.retryable == retryable


def test_a_credential_that_was_sent_away_rests_for_everybody(tmp_path: Path) -> None:
    agent = program(tmp_path, "sys.exit(75)")
    impatient = ModelSettings(limits={"performer.py": CallLimits(max_wait_s=0)})
    first = perform(agent_spec(tmp_path, "command", agent, models=impatient))
    second = perform(agent_spec(tmp_path, "command", agent, models=impatient))

    assert first.error is not None
    assert second.error is not None
    assert (first.error.type, second.error.type) == ("AgentFailed", "CoolingDownError")


def test_an_agent_takes_one_slot_and_waiting_for_it_takes_none_of_its_time(tmp_path: Path) -> None:
    text = "at = time.time()\ntime.sleep(1)\nprint(at, time.time())"
    limits = ModelSettings(limits={"performer.py": CallLimits(slots=1)})
    spec = agent_spec(tmp_path, "command", program(tmp_path, text), models=limits, timeout_s=1.9)

    async def both() -> list[AttemptResult]:
        agent = performers()["agent"]
        other = msgspec.structs.replace(spec, attempt_id=f"{spec.attempt_id}-other")
        return list(await asyncio.gather(agent(spec, RecordingHost()), agent(other, RecordingHost())))

    spans = sorted(tuple(map(float, output_of(outcome)["text"].split())) for outcome in asyncio.run(both()))
    assert spans[0][1] <= spans[1][0], "one after the other"


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    outcome = perform(agent_spec(tmp_path, "command", "no-such-agent"))

    assert outcome.error is not None
    assert "'no-such-agent' is in no folder of PATH" in outcome.error.text
    assert not outcome.retryable


def test_its_word_is_not_taken_where_verify_says_otherwise(tmp_path: Path) -> None:
    agent = program(tmp_path, "open('made', 'w')\nprint('All tests pass!')")
    good = perform(agent_spec(tmp_path, "command", agent, verify="test -e made && echo checked"))
    bad = perform(agent_spec(tmp_path, "command", agent, verify="echo 2 failed; exit 1"))

    assert output_of(good)["verify"]["stdout"] == "checked"
    assert bad.error is not None
    assert "`verify` says otherwise" in bad.error.text
    assert "2 failed" in bad.error.text


def test_of_several_commands_each_is_told_and_none_runs_after_one_that_failed(tmp_path: Path) -> None:
    agent = program(tmp_path, "print('All tests pass!')")
    runs: tuple[str | tuple[str, ...], ...] = ("echo one", ("sh", "-c", "echo two >&2; exit 3"), "touch never")
    verify = tuple(VerifySpec(written=str(run), command=run) for run in runs)
    spec = agent_spec(tmp_path, "command", agent)
    assert spec.agent is not None
    work = msgspec.structs.replace(spec.agent, verify=tuple(VerifyCommand(run=run) for run in runs))
    spec = msgspec.structs.replace(spec, agent=work, verify=verify)
    bad = perform(spec)
    good = perform(msgspec.structs.replace(spec, verify=(verify[0], verify[2])))

    assert bad.error is not None
    assert bad.agent == "rejected"
    assert "`verify` command 2 of 3" in bad.error.text
    assert bad.verified is not None
    assert [(check.exit_code, check.said) for check in bad.verified.checks] == [(0, "one"), (3, "two")]
    assert bad.verified.not_run == ("touch never",)
    assert good.verified is not None
    assert good.verified.passed
    assert [said["stdout"] for said in output_of(good)["verify"]] == ["one", ""]


def test_an_answer_by_schema_is_given_as_a_value(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    says = program(tmp_path, "asked = sys.stdin.read()\nprint('{\"n\": %d}' % ('JSON Schema' in asked))")
    assert output_of(perform(agent_spec(tmp_path, "command", says, schema=schema)))["json"] == {"n": 1}

    for text in ("print('no idea')", 'print(\'{"n": "one"}\')'):
        outcome = perform(agent_spec(tmp_path, "command", program(tmp_path, text), schema=schema))
        assert outcome.error is not None
        assert "(agent_error)" in outcome.error.text


def test_a_cancelled_agent_is_ended_with_all_it_started(tmp_path: Path) -> None:
    agent = program(
        tmp_path,
        "import subprocess\nchild = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "open('pid', 'w').write(f'{child.pid}\\n')\nos.rename('pid', 'grandchild')\ntime.sleep(600)",
    )
    host = RecordingHost()
    outcome = asyncio.run(
        cancel_when(agent_spec(tmp_path, "command", agent), host, lambda: (tmp_path / "grandchild").exists())
    )

    assert outcome.cancelled
    assert not is_alive(host.children[0].pid)
    assert not is_alive(pid_in(tmp_path / "grandchild"))


def test_secrets_stop_before_lines_log_and_result(tmp_path: Path) -> None:
    secret = 'hunter2-"quoted"-and-long'
    log, host = Log(), RecordingHost()
    agent = program(tmp_path, f"print({secret!r})\nprint({secret!r}, file=sys.stderr)\nsys.exit(1)")
    spec = agent_spec(tmp_path, "command", agent, prompt=f"Use {secret}.", log=log)
    spec = msgspec.structs.replace(spec, masker=Masker([("TOKEN", secret)]))
    outcome = perform(spec, host)

    assert outcome.error is not None
    for told in (outcome.error.text, repr(host.shown), log.data.decode()):
        assert "hunter2" not in told


def test_an_answer_without_end_is_none_and_a_flood_is_thinned(tmp_path: Path) -> None:
    host = RecordingHost()
    text = "for _ in range(300):\n    sys.stdout.write('x' * 60_000 + '\\n' * 5_000)\n    sys.stdout.flush()"
    outcome = perform(agent_spec(tmp_path, "command", program(tmp_path, text)), host)

    assert outcome.error is not None
    assert "it printed more than" in outcome.error.text
    assert len(host.shown) < 300 * 5_000 / 2
    assert any("lines not shown live" in line for line in host.lines("stdout"))


def test_files_are_captured_now_and_then_also_where_no_turn_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "TURN_S", 0.1)
    host = RecordingHost()
    outcome = perform(agent_spec(tmp_path, "command", program(tmp_path, "time.sleep(1)")), host)

    assert outcome.error is None
    assert host.turns >= 3


def test_an_agent_whose_work_cannot_be_written_down_is_ended(tmp_path: Path) -> None:
    class Lost(RecordingHost):
        async def record_session(self, session: AgentSession) -> None:
            raise LeaseLostError("run-1")

    path = shaped_like_codex(tmp_path, {"type": "thread.started", "thread_id": "t-1"})
    host = Lost()
    with pytest.raises(LeaseLostError):
        perform(agent_spec(tmp_path, "codex", env={"PATH": path}), host)

    assert not is_alive(host.children[0].pid)


def test_a_secret_that_only_shows_once_its_line_is_read_is_masked(tmp_path: Path) -> None:
    secret = "hunter2-and-long"
    item = {"type": "agent_message", "text": f"It is {secret}."}
    path = shaped_like_codex(tmp_path, {"type": "item.completed", "item": item}, lasts_s=0)
    program = tmp_path / "codex"
    program.write_text(program.read_text().replace(secret, "".join(f"\\\\u{ord(sign):04x}" for sign in secret)))
    host = RecordingHost()
    spec = agent_spec(tmp_path, "codex", env={"PATH": path})
    perform(msgspec.structs.replace(spec, masker=Masker([("TOKEN", secret)])), host)

    [line] = host.lines("stdout")
    assert line.startswith("It is ")
    assert secret not in line


def test_the_log_says_how_it_was_started_and_how_it_ended(tmp_path: Path) -> None:
    log = Log()
    agent = program(tmp_path, "print('fine')")
    perform(agent_spec(tmp_path, "command", agent, "--flag", prompt="The prompt.", log=log, env={"VALUE": "hidden"}))

    first, said, last = log.data.decode().splitlines()
    started = json.loads(first)["agent_started"]
    assert started["argv"] == [agent, "--flag"]
    assert started["prompt"] == "The prompt."
    assert started["attempt"].endswith("/t/1")
    assert (started["cwd"], started["schema"]) == (str(tmp_path.resolve()), None)
    assert "VALUE" in started["env"]
    assert "hidden" not in first
    assert said == "fine"
    assert json.loads(last)["agent_ended"]["outcome"] == "ok"
