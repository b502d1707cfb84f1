from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from agentos.machine.inputs import AttemptResult
from agentos.tasks.process.output_capture import KEEP_BYTES
from tests.unit.tasks.support import RecordingHost, is_alive, open_files, output_of, perform, pid_in, shell_spec


def failure_text(outcome: AttemptResult, kind: str = "ShellCommandFailed") -> str:
    assert outcome.error is not None
    assert outcome.error.type == kind, outcome.error
    return outcome.error.text


# --- what runs ----------------------------------------------------------------------------------------------------


def test_a_script_gives_what_it_printed_without_the_last_newline() -> None:
    assert output_of(perform(shell_spec("echo out; echo err >&2; echo"))) == {
        "stdout": "out\n",
        "stderr": "err",
        "exit_code": 0,
    }


def test_a_script_stops_at_the_first_failure_also_inside_a_pipe() -> None:
    assert "exit code 3" in failure_text(perform(shell_spec("(exit 3) | cat; echo never >&2")))
    assert "never" not in failure_text(perform(shell_spec("false; echo never >&2")))


def test_a_list_is_an_argument_vector_and_no_shell_sees_it() -> None:
    words = ("printf", "%s\\n", "$HOME", "; touch x", "a b", "*", "", "`id`", "-n", "\n")

    assert output_of(perform(shell_spec(words)))["stdout"] == "\n".join(words[2:])


def test_without_bash_a_script_runs_in_sh(tmp_path: Path) -> None:
    (tmp_path / "cat").symlink_to("/bin/cat")
    spec = shell_spec('echo "${BASH_VERSION:-none}"; echo "$0"', env={"PATH": str(tmp_path)})

    assert output_of(perform(spec))["stdout"].splitlines() == ["none", "/bin/sh"]


def test_a_script_too_long_for_an_argument_runs_all_the_same() -> None:
    script = "".join(f": {'x' * 1000}\n" for _ in range(300)) + "echo done"

    assert output_of(perform(shell_spec(script)))["stdout"] == "done"


def test_stdin_is_at_its_end_at_once() -> None:
    assert output_of(perform(shell_spec("cat; readlink /proc/self/fd/0 || true")))["stdout"] in ("", "/dev/null")


def test_only_the_three_standard_descriptors_are_open(tmp_path: Path) -> None:
    with open(tmp_path / "mine", "w") as file:
        os.set_inheritable(file.fileno(), True)
        listed = output_of(perform(shell_spec(("ls", "/proc/self/fd"))))["stdout"].split()

    assert set(listed) <= {"0", "1", "2", "3"}  # 3 is the folder that ls reads


def test_it_runs_in_its_folder_below_the_root(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()

    assert output_of(perform(shell_spec("pwd -P", root=tmp_path, cwd="sub")))["stdout"] == str(
        tmp_path.resolve() / "sub"
    )


def test_variables_are_inherited_added_and_ours_cannot_be_overridden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INHERITED", "yes")
    monkeypatch.setenv("AGENTOS_ATTEMPT_ID", "an/outer/1")
    given = {"ADDED": "a'b\"c $(id) \n", "AGENTOS_ATTEMPT_ID": "faked", "AGENTOS_OUTPUT": "/etc/passwd"}
    names = (
        "INHERITED",
        "ADDED",
        "AGENTOS_ATTEMPT_ID",
        "AGENTOS_IDEMPOTENCY_KEY",
        "AGENTOS_WORKFLOW_ID",
        "AGENTOS_TASK_ID",
    )
    script = f"import os; print([os.environ[n] for n in {names!r}]); print(os.environ['AGENTOS_OUTPUT'])"
    spec = shell_spec((sys.executable, "-c", script), env=given)
    listed, path = output_of(perform(spec))["stdout"].splitlines()

    assert eval(listed) == ["yes", given["ADDED"], spec.attempt_id, "key-1", "run-1", "t"]
    assert path != "/etc/passwd"
    assert not Path(path).parent.exists(), "the private folder is removed"


def test_a_hostile_environment_neither_runs_nor_breaks_anything(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in {
        "IFS": "x/",
        "ENV": "/nonexistent",
        "PS4": "$(touch pwned)",
        "BASH_FUNC_exec%%": "() { touch pwned; }",
        "BASH_FUNC_echo%%": "() { command echo mine; }",
        "SHELLOPTS": "noexec",
        "NOT_UTF8": os.fsdecode(b"\xff\xfe"),
        "go": "evil",
        "1": "evil",
        "with space": "evil",
    }.items():
        monkeypatch.setenv(name, value)

    out = output_of(perform(shell_spec(("sh", "-c", 'printf %s "$NOT_UTF8"'), root=tmp_path)))
    assert out["stdout_bytes"] == b"\xff\xfe"
    assert list(tmp_path.iterdir()) == []


# --- what cannot run ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (shell_spec(("no-such-command-here",)), "command not found: 'no-such-command-here'"),
        (shell_spec(("./missing.sh",)), "no file /tmp/./missing.sh".replace("/./", "/")),
        (shell_spec(("/etc/passwd",)), "not executable: /etc/passwd"),
        (shell_spec(("/etc",)), "not executable: /etc"),
        (shell_spec("true", cwd="no/such/folder"), "/tmp/no/such/folder does not exist"),
        (shell_spec("true", cwd="/etc/passwd"), "/etc/passwd is not a folder"),
        (shell_spec(""), "no command"),
        (shell_spec(()), "no command"),
        (shell_spec("echo \0"), "null byte"),
        (shell_spec("true", env={"A=B": "c"}), "illegal environment variable name"),
        (shell_spec("true", env={"A": "\0"}), "null byte"),
        (shell_spec("true", env={"A": "\ud800"}), "surrogate"),
        (shell_spec("true", env={"A": "x" * 300_000}), "too long"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_started_says_why_and_is_not_tried_again(spec: Any, text: str) -> None:
    host = RecordingHost()
    outcome = perform(spec, host)

    assert text in failure_text(outcome, "AttemptError")
    assert outcome.retryable is False


def test_relative_places_in_path_count_from_the_working_folder(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    tool = tmp_path / "bin" / "tool"
    tool.write_text("#!/bin/sh\necho from the tool\n")
    tool.chmod(0o755)

    spec = shell_spec(("tool",), root=tmp_path, env={"PATH": f"bin:{os.environ['PATH']}"})
    assert output_of(perform(spec))["stdout"] == "from the tool"


# --- how it ends --------------------------------------------------------------------------------------------------


def test_a_failure_tells_exit_code_and_last_lines() -> None:
    outcome = perform(shell_spec("echo on stdout; for i in $(seq 100); do echo line $i >&2; done; exit 42"))
    text = failure_text(outcome)

    assert "exit code 42" in text
    assert "line 100" in text
    assert "line 50\n" not in text
    assert "on stdout" in text
    assert outcome.retryable


def test_a_failure_with_endless_lines_stays_short() -> None:
    text = failure_text(perform(shell_spec("head -c 3000000 /dev/zero | tr '\\0' x >&2; exit 1")))

    assert len(text) < 10_000


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("kill -SEGV $$", "killed by SIGSEGV"),
        ("bash -c 'kill -KILL $$'; true", "exit code 137 (128 + 9: as if killed by SIGKILL)"),
        ("no-such-command-here", "exit code 127 (command not found)"),
        ("exit 255", "exit code 255"),
        ("exit 125", "exit code 125"),
    ],
)
def test_the_way_it_ended_is_told(script: str, text: str) -> None:
    assert text in failure_text(perform(shell_spec(script)))


def test_what_a_failed_command_left_in_its_group_is_ended(tmp_path: Path) -> None:
    outcome = perform(shell_spec("sleep 600 >/dev/null 2>&1 & echo $! > pid; false", root=tmp_path))

    assert "exit code 1" in failure_text(outcome)
    assert not is_alive(pid_in(tmp_path / "pid"))


def test_a_background_process_that_holds_the_output_does_not_hold_the_attempt(tmp_path: Path) -> None:
    outcome = perform(shell_spec("echo before; sleep 600 & echo $! > pid", root=tmp_path))
    pid = pid_in(tmp_path / "pid")

    try:
        assert output_of(outcome)["stdout"] == "before"
        assert any("background" in warning for warning in outcome.warnings)
        assert is_alive(pid), "a command that succeeded may leave a server behind"
    finally:
        os.kill(pid, signal.SIGKILL)


def test_nothing_is_left_open_and_nobody_is_left_a_zombie(tmp_path: Path) -> None:
    perform(shell_spec("true"))
    before = open_files()
    commands = ["true", "false", "sleep 600", "sleep 600 & echo $! > pid", "exec missing", "kill -9 $$"]
    hosts = [RecordingHost() for _ in commands]
    for host, command in zip(hosts, commands, strict=True):
        perform(shell_spec(command, root=tmp_path, timeout_s=0.3), host)
    os.kill(pid_in(tmp_path / "pid"), signal.SIGKILL)

    assert open_files() == before
    for host in hosts:
        with pytest.raises(ChildProcessError):
            os.waitpid(host.children[0].pid, os.WNOHANG)


# --- what it gives ------------------------------------------------------------------------------------------------


def test_ten_megabytes_are_bounded_and_both_ends_kept() -> None:
    script = "echo first; head -c 10000000 /dev/zero | tr '\\0' x; echo; echo last"
    host = RecordingHost()
    outcome = perform(shell_spec(script), host)
    out = output_of(outcome)

    total = len("first\n") + 10_000_000 + len("\nlast\n")
    assert out["stdout"].startswith("first\n")
    assert out["stdout"].endswith("last")
    assert len(out["stdout"]) < 2 * KEEP_BYTES + 100
    assert out["stdout_dropped"] == total - 2 * KEEP_BYTES
    assert f"{out['stdout_dropped']} bytes left out" in out["stdout"]
    assert any(str(out["stdout_dropped"]) in warning for warning in outcome.warnings)
    assert sum(len(line) for line in host.lines("stdout")) < 100_000


def test_output_that_is_not_utf_8_comes_with_its_bytes() -> None:
    out = output_of(perform(shell_spec("printf 'a\\377b\\n'; printf '\\200' >&2")))

    assert out == {
        "stdout": "a\ufffdb",
        "stdout_bytes": b"a\xffb\n",
        "stderr": "\ufffd",
        "stderr_bytes": b"\x80",
        "exit_code": 0,
    }


def test_nul_bytes_are_output_like_any_other() -> None:
    assert output_of(perform(shell_spec("printf 'a\\0b'")))["stdout"] == "a\0b"


def test_lines_are_shown_live_while_it_runs(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)

    class Answering(RecordingHost):
        def output(self, stream: Any, text: str) -> None:
            super().output(stream, text)
            if text == "waiting":
                # The command goes on only because its line was shown before it had ended.
                with open(os.open(fifo, os.O_RDWR), "w") as file:
                    file.write("go\n")
                    file.flush()
                    self.held = os.dup(file.fileno())

    host = Answering()
    out = output_of(
        perform(shell_spec("echo waiting; read answer < fifo; echo $answer; echo e >&2", root=tmp_path), host)
    )
    os.close(host.held)

    assert out["stdout"] == "waiting\ngo"
    assert host.lines("stdout") == ["waiting", "go"]
    assert host.lines("stderr") == ["e"]


@pytest.mark.parametrize("document", ['{"a": [1, null]}', "3", '"é"', "[]"])
def test_json_on_stdout_can_be_the_result(document: str) -> None:
    assert output_of(perform(shell_spec(("echo", document), output="json"))) == json.loads(document)


@pytest.mark.parametrize("printed", ["", "not json", '{"a": 1} trailing'])
def test_a_result_that_should_be_json_and_is_not_fails_clearly(printed: str) -> None:
    text = failure_text(perform(shell_spec(("printf", "%s", printed), output="json")), "AttemptError")

    assert "no JSON document" in text
    assert printed in text


def test_json_may_be_longer_than_what_is_kept_of_other_output() -> None:
    script = "import json; print(json.dumps(['x' * 5_000_000]))"

    assert output_of(perform(shell_spec((sys.executable, "-c", script), output="json"))) == ["x" * 5_000_000]


@pytest.mark.parametrize(
    ("written", "values"),
    [
        ("a=1\nb = x = y\n\nc=\n", {"a": "1", "b": " x = y", "c": ""}),
        ("a=1\r\n", {"a": "1"}),
        ('{"a": [1]}', {"a": [1]}),
        ("[1, 2]\n", [1, 2]),
    ],
)
def test_what_it_writes_to_the_output_file_comes_as_values(written: str, values: Any) -> None:
    spec = shell_spec('printf %s "$WRITTEN" > "$AGENTOS_OUTPUT"; echo shown', env={"WRITTEN": written})

    assert output_of(perform(spec)) == {"stdout": "shown", "stderr": "", "exit_code": 0, "values": values}


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ('echo "no equals sign" > "$AGENTOS_OUTPUT"', "line 1 is 'no equals sign'"),
        ('printf "a=\\377" > "$AGENTOS_OUTPUT"', "not UTF-8"),
        ('rm "$AGENTOS_OUTPUT"; mkfifo "$AGENTOS_OUTPUT"', "no longer a plain file"),
        ('rm "$AGENTOS_OUTPUT"; mkdir "$AGENTOS_OUTPUT"', "no longer a plain file"),
        ('rm "$AGENTOS_OUTPUT"; ln -s /etc/passwd "$AGENTOS_OUTPUT"', "cannot be read"),
        ('truncate -s 5G "$AGENTOS_OUTPUT"', "more than"),
    ],
)
def test_an_output_file_that_cannot_be_understood_fails_clearly(script: str, text: str) -> None:
    assert text in failure_text(perform(shell_spec(script)), "AttemptError")


def test_a_removed_output_file_is_an_empty_one() -> None:
    assert "values" not in output_of(perform(shell_spec('rm -r "$(dirname "$AGENTOS_OUTPUT")"')))
