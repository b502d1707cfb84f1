"""What a task's own text tells about running it twice."""

from __future__ import annotations

import pytest

from agentos.dag.define.task import TaskDef
from agentos.dag.plan.hints import Hints, hint_line, hints_of
from agentos.ids import TaskId


def shell(run: str | tuple[str, ...], **more: object) -> TaskDef:
    return TaskDef(id=TaskId("t"), kind="shell", run=run, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("script", "doubt"),
    [
        ("echo x >> log.txt", "appends to log.txt"),
        ("echo x >>log.txt", "appends to log.txt"),
        ("make 2>> errors.log", "appends to errors.log"),
        ("make &>> all.log", "appends to all.log"),
        ("echo x | tee -a log.txt", "appends to log.txt"),
        ('echo x >> "my log.txt"', "appends to my log.txt"),
        ("if true; then\n  echo x >> log\nfi", "appends to log"),
        ('tar cf - . > "backup-$(date +%F).tar"', "gives backup-$(date +%F).tar another name each time"),
        ("touch run-$RANDOM", "gives run-$RANDOM another name each time"),
        ("mkdir out.$$", "gives out.$$ another name each time"),
        (
            "echo x > /tmp/state",
            "writes /tmp/state, outside of what is captured (mktemp gives a name of its own)",
        ),
    ],
)
def test_what_a_script_does_that_a_second_run_would_see(script: str, doubt: str) -> None:
    assert hints_of(shell(script)) == Hints((doubt,))


@pytest.mark.parametrize(
    "script",
    [
        "echo x > log.txt",
        "echo a > out; echo b >> out",
        "rm -f out\necho b >> out",
        'echo "result=1" >> "$AGENTOS_OUTPUT"',
        "echo x >> ${AGENTOS_OUTPUT}",
        "make 2>&1",
        "make > /dev/null 2>> /dev/stderr",
        "# echo x >> log",
        "echo 'a >> b'",
        'echo "a >> b"',
        "cat <<EOF > page\na >> b\ngit commit\nEOF\n",
        "cat <<'EOF'\nx >> y\nEOF",
        'log=$(mktemp)\necho x >> "$log"\necho y >> ${log}',
        "echo $(( 1 >> 2 ))",
        "date",
        "git status; git diff; git log -1; git branch --show-current; git tag -l",
        "git stash list; git -C sub rev-parse HEAD",
        "git tag --sort=-v:refname",
        "ls 'unclosed",
        "",
    ],
)
def test_no_alarm_where_there_is_nothing(script: str) -> None:
    assert hints_of(shell(script)) == Hints()


@pytest.mark.parametrize(
    ("run", "command"),
    [
        ("make && git commit -am done", "git commit"),
        ("git -C sub -c user.name=x commit -m y", "git commit"),
        ("GIT_AUTHOR_NAME=x git tag v1", "git tag"),
        ("git stash", "git stash"),
        ("git branch new", "git branch"),
        (("git", "push"), "git push"),
    ],
)
def test_git_commands_that_move_refs(run: str | tuple[str, ...], command: str) -> None:
    assert hints_of(shell(run)).moves_refs == command


@pytest.mark.parametrize(
    ("source", "doubts"),
    [
        ("def f():\n    open('log', 'a').write('x')\n", ("opens 'log' for appending",)),
        (
            "    def f(self):\n        with open(self.path, mode='ab') as file: ...\n",
            ("opens self.path for appending",),
        ),
        ("def f(p):\n    p.open('a+')\n", ("opens p for appending",)),
        ("def f():\n    io.open('log', 'at')\n", ("opens a file for appending",)),
        ("def f():\n    open('a')\n    open('log', 'w')\n    open('x', encoding='a')\n", ()),
        ("lambda: open('log', 'a'),", ("opens 'log' for appending",)),
        ("not python at all", ()),
    ],
)
def test_python_that_appends(source: str, doubts: tuple[str, ...]) -> None:
    task = TaskDef(id=TaskId("t"), kind="python")
    assert hints_of(task, source).doubts == doubts


def test_one_line_for_a_task_however_much_there_is() -> None:
    script = "echo a >> one; echo b >> one; echo c >> two; git commit -m x"
    assert hint_line(shell(script), hints_of(shell(script))) == (
        "task 't' may not be safe to run twice: it appends to one and it appends to two and `git commit` is an "
        "external effect, which it does not declare"
    )


def test_what_a_task_declares_counts() -> None:
    appending = Hints(("appends to log",))
    assert hint_line(shell("", idempotent="yes"), appending) == "task 't' is declared idempotent, but it appends to log"
    assert hint_line(shell("", effects=("files", "external")), Hints(("appends to log",), "git commit")) == ""
    assert hint_line(shell("", effects=("external",), idempotent="yes"), Hints((), "git push")) == ""
    assert hint_line(shell("", effects=("external",), idempotent="yes"), appending) != ""
    assert hint_line(shell(""), Hints()) == ""
