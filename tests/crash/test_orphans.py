"""What a killed driver leaves behind: commands that run on, and commands that never may."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import psutil
import pytest

from agentos.store.holder import process_started
from tests.crash import checks
from tests.crash.harness import Theatre, wait_for

pytestmark = pytest.mark.timeout(300)  # a busy machine is no failure

SURVIVOR = r"""
from tests.crash.children.witness import main
from agentos import Workflow

flow = Workflow("survivor")
flow.add("command", "shell", effects="none", run=r'''
python=PYTHON
for pid in $(cat ../survivors 2>/dev/null); do
  case "$(cut -d' ' -f3 "/proc/$pid/stat" 2>/dev/null)" in
    ''|Z|X) ;;  # gone, or dead and not yet noticed by its parent
    *) echo "$pid is still there" >> ../seen ;;
  esac
done
printf '{"attempt_id": "%s"}\n' "$AGENTOS_ATTEMPT_ID" >> "$CRASH_TRACE"
# In a session of its own, with nobody's pipe: it survives whatever is sent to the group of the command.
"$python" -c "
import os, time
os.setsid()
open('../survivors', 'a').write(f'{os.getpid()}' + chr(10))
while True: time.sleep(0.05)
" </dev/null >/dev/null 2>&1 &
until [ -e ../go ]; do sleep 0.02; done
''')

if __name__ == "__main__":
    main(flow)
"""
COUNTED = """
from tests.crash.children.witness import main
from agentos import Workflow

flow = Workflow("counted")
flow.add("deliver", "shell", effects=EFFECTS, idempotent=False, run='''
printf '{"attempt_id": "%s"}\\\\n' "$AGENTOS_ATTEMPT_ID" >> "$CRASH_TRACE"
THEN
''')

if __name__ == "__main__":
    main(flow)
"""


def counted(*, effects: str, then: str = "") -> str:
    return COUNTED.replace("EFFECTS", repr(effects)).replace("THEN", then)


def carriers(workflow_id: str, root: Path) -> list[int]:
    """Processes that carry an attempt of the run in this repository."""
    found = []
    for process in psutil.process_iter():
        try:
            environment = process.environ() if process.status() != psutil.STATUS_ZOMBIE else {}
        except psutil.Error:
            continue
        mine = environment.get("AGENTOS_ROOT") == str(root)
        if mine and environment.get("AGENTOS_ATTEMPT_ID", "").startswith(f"{workflow_id}/"):
            found.append(process.pid)
    return found


def test_what_outlived_the_driver_is_ended_before_the_task_runs_again(tmp_path: Path) -> None:
    theatre = Theatre.of_text(tmp_path, SURVIVOR.replace("PYTHON", sys.executable), "survivor")
    driver = theatre.start(str(theatre.repo / "flow.py"))
    survivors = tmp_path / "survivors"
    wait_for(lambda: survivors.exists() and survivors.read_text().strip(), "a process that survives")
    [pid] = map(int, survivors.read_text().split())
    driver.kill()
    assert theatre.end(driver).code == -signal.SIGKILL
    began = process_started(pid)
    assert began is not None, "it did not outlive its driver, so that there is nothing to test"
    (tmp_path / "go").touch()
    assert theatre.resume().said == {"status": "complete"}
    assert process_started(pid) != began
    assert not (tmp_path / "seen").exists(), (tmp_path / "seen").read_text()
    checks.check_journal(theatre.journal(), killed=[driver.pid])
    assert [line["attempt"] for line in theatre.trace()] == [1, 2]
    for left in survivors.read_text().split():
        psutil.Process(int(left)).kill() if psutil.pid_exists(int(left)) else None


def test_a_command_whose_process_was_not_yet_on_the_record_never_executes(tmp_path: Path) -> None:
    theatre = Theatre.of_text(tmp_path, counted(effects="none"), "early")
    assert theatre.run(at="process.before").killed
    wait_for(lambda: not carriers("run-1", theatre.repo), "the child to give up")
    assert theatre.trace() == []
    assert theatre.resume().said == {"status": "complete"}
    assert [line["attempt"] for line in theatre.trace()] == [2]


def test_a_command_with_effects_that_was_cut_off_waits_for_an_answer(tmp_path: Path) -> None:
    theatre = Theatre.of_text(tmp_path, counted(effects="external"), "cut off")
    assert theatre.run(at="attempt.inside").killed
    check_that_only_an_answer_continues(theatre)


def test_a_command_that_took_effect_before_it_was_cut_off_is_vouched_for_and_not_repeated(tmp_path: Path) -> None:
    flow = counted(effects="external", then="until [ -e ../go ]; do sleep 0.02; done")
    theatre = Theatre.of_text(tmp_path, flow, "took effect")
    driver = theatre.start(str(theatre.repo / "flow.py"))
    wait_for(theatre.trace, "the effect")
    driver.kill()
    assert theatre.end(driver).code == -signal.SIGKILL
    (tmp_path / "go").touch()
    check_that_only_an_answer_continues(theatre)


def check_that_only_an_answer_continues(theatre: Theatre) -> None:
    """Whether the command got as far as its effect or not: it is asked about, and the effect takes place once."""
    wait_for(lambda: not carriers("run-1", theatre.repo), "the command to end")
    executed = len(theatre.trace())
    for _ in range(2):
        assert theatre.resume().said == {"status": "waiting"}
    assert len(theatre.trace()) == executed
    assert theatre.answer().code == 0
    assert theatre.resume().said == {"status": "complete"}
    assert len(theatre.trace()) == 1
    checks.check_journal(theatre.journal(), killed=[theatre.ended[0].pid])
