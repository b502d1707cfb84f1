from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentos.machine.events import NOTHING
from agentos.tasks.attempt import AttemptSpec, ChildProcess
from agentos.values import decode_value
from tests.unit.tasks import for_import
from tests.unit.tasks.support import RecordingHost, cancel_when, is_alive, output_of, perform, python_spec


def isolated(
    function: Any, arguments: dict[str, Any] | None = None, root: Path = Path("/tmp"), **fields: Any
) -> AttemptSpec:
    spec = python_spec(function, arguments, isolation="process", **fields)
    return msgspec.structs.replace(spec, root=root, env={"FROM_TASK": "given"})


def test_it_runs_in_a_process_of_its_own_that_the_host_has_written_down(tmp_path: Path) -> None:
    host = RecordingHost()
    spec = isolated(for_import.whoami, root=tmp_path)
    found = output_of(perform(spec, host))

    assert found == {
        "pid": host.children[0].pid,
        "pgid": host.children[0].pid,
        "stdin": "",
        "cwd": str(tmp_path.resolve()),
        "env": "given",
        "attempt_id": spec.attempt_id,
        "ctx": ["run-1", "t", 1, "key-1"],
    }


def test_what_it_says_comes_back(capfd: pytest.CaptureFixture[str]) -> None:
    host = RecordingHost()
    outcome = perform(isolated(for_import.talks), host)

    assert output_of(outcome) == b"\xfe"
    assert decode_value(outcome.messages) == [{"role": "user", "content": b"\xff"}]
    assert decode_value(outcome.context) == {"k": {"v": 1}}
    assert outcome.injected == (("more", {"run": "true", "inputs": {"raw": b"\x00"}}),)
    assert host.lines("progress") == ["half way"]
    assert host.lines("stdout") == ["to stdout"]
    assert capfd.readouterr() == ("", "")


def test_large_arguments_and_results_pass() -> None:
    value = {"text": "x" * 3_000_000, "raw": b"\x00" * 100_000}

    assert output_of(perform(isolated(for_import.echo, {"value": value}))) == value


def test_a_coroutine_it_returns_is_awaited() -> None:
    assert output_of(perform(isolated(for_import.returns_coroutine))) == "awaited"


def test_a_function_known_by_name_only_is_found() -> None:
    assert output_of(perform(isolated(None, {"number": 4}, call="tests.unit.tasks.for_import:double"))) == 8


def test_a_module_in_the_working_folder_does_not_stand_in_for_the_standard_library(tmp_path: Path) -> None:
    for name in ("json", "asyncio", "agentos"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong module')")

    assert output_of(perform(isolated(for_import.double, {"number": 1}, root=tmp_path))) == 2


@pytest.mark.parametrize(
    ("function", "kind", "text", "retryable"),
    [
        (for_import.raises, "LookupError", "from afar", True),
        (for_import.exits, "SystemExit", "status 3", True),
        (for_import.unstorable, "ValueEncodingError", "$.a[0]", False),
        (for_import.vanishes, "AttemptError", "exit code 0 before it gave a result", True),
        (for_import.crashes, "AttemptError", "killed by SIGSEGV before it gave a result", True),
    ],
)
def test_failures_are_told(function: Any, kind: str, text: str, retryable: bool) -> None:
    outcome = perform(isolated(function))

    assert outcome.error is not None
    assert outcome.error.type == kind
    assert text in outcome.error.text
    assert outcome.retryable is retryable
    if function is for_import.raises:
        assert "in raises" in outcome.error.traceback
    if function is for_import.vanishes:
        assert "last words" in outcome.error.text


def test_functions_that_have_no_name_to_import_are_refused() -> None:
    def local() -> None: ...

    for function in (lambda: 1, local, for_import.double.__get__(3)):
        outcome = perform(isolated(function))
        assert outcome.error is not None
        assert "cannot be imported by name" in outcome.error.text
        assert outcome.retryable is False


def test_a_function_hidden_by_another_of_its_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    function = for_import.double
    monkeypatch.setattr(for_import, "double", lambda number: number)
    outcome = perform(isolated(function, {"number": 1}))

    assert outcome.error is not None
    assert "cannot be imported by name" in outcome.error.text


def test_arguments_without_a_stored_form_are_refused() -> None:
    outcome = perform(isolated(for_import.echo, {"value": object()}))

    assert outcome.error is not None
    assert "$.value" in outcome.error.text


def test_threads_it_leaves_behind_do_not_hold_it() -> None:
    assert output_of(perform(isolated(for_import.leaves_a_thread_behind, timeout_s=30))) == "done"


@pytest.mark.parametrize("how", ["cancelled", "timeout"])
def test_a_sync_function_is_really_ended_with_what_it_started(how: str, tmp_path: Path) -> None:
    pids, cleaned = tmp_path / "pids", tmp_path / "cleaned"
    arguments = {"pids": str(pids), "cleaned": str(cleaned)}
    host = RecordingHost()
    if how == "timeout":
        outcome = perform(isolated(for_import.sleeps_with_a_child, arguments, timeout_s=3.0), host)
        assert outcome.error is not None
        assert outcome.error.type == "TaskTimeoutError"
    else:
        spec = isolated(for_import.sleeps_with_a_child, arguments)
        outcome = asyncio.run(cancel_when(spec, host, lambda: pids.exists() and pids.read_text().endswith("\n")))
        assert outcome.cancelled

    assert host.abandonments == []
    assert not [pid for pid in map(int, pids.read_text().split()) if is_alive(pid)]
    assert cleaned.exists(), "`finally` runs within the grace"


def test_without_leave_the_function_never_runs(tmp_path: Path) -> None:
    async def refuse(child: ChildProcess) -> None:
        raise ConnectionError("the journal cannot be written")

    host = RecordingHost(refuse)
    with pytest.raises(ConnectionError):
        perform(isolated(for_import.touch, {"path": str(tmp_path / "ran")}), host)

    assert not is_alive(host.children[0].pid)
    assert not (tmp_path / "ran").exists()


def run_script(tmp_path: Path, *argv: str) -> str:
    (tmp_path / "flow_script.py").write_text(
        textwrap.dedent("""
        import asyncio
        from pathlib import Path

        def mine(n):
            return [__name__, n]

        if __name__ == "__main__":
            import msgspec
            from tests.unit.tasks.support import RecordingHost, python_spec, performers, output_of
            spec = msgspec.structs.replace(python_spec(mine, {"n": 1}, isolation="process"), root=Path(__file__).parent)
            outcome = asyncio.run(performers()["python"](spec, RecordingHost()))
            print(outcome.error.text if outcome.error else output_of(outcome))
        """)
    )
    path = os.pathsep.join(path or os.getcwd() for path in sys.path)
    env = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, *argv], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_function_of_the_script_itself_is_found_by_the_scripts_file(tmp_path: Path) -> None:
    assert run_script(tmp_path, "flow_script.py") == "['flow_script', 1]"


def test_a_function_of_python_m_is_found_by_its_modules_name(tmp_path: Path) -> None:
    assert run_script(tmp_path, "-m", "flow_script") == "['flow_script', 1]"


def test_a_function_typed_into_the_interpreter_is_refused(tmp_path: Path) -> None:
    run_script(tmp_path, "flow_script.py")
    source = (tmp_path / "flow_script.py").read_text().replace("Path(__file__).parent", "Path('/tmp')")

    assert "cannot be imported by name" in run_script(tmp_path, "-c", source)


def test_where_it_left_nothing_the_outcome_says_nothing() -> None:
    outcome = perform(isolated(for_import.whoami))

    assert outcome.messages is NOTHING
    assert outcome.context is NOTHING
