"""What functions print becomes lines of their task, and nobody else's."""

from __future__ import annotations

import asyncio
import io
import sys
import threading
from contextlib import redirect_stdout

from agentos.tasks.python.stdout import MAX_LINE, PrintRouter, route_prints


def test_lines_go_to_whoever_is_heard_and_the_rest_passes() -> None:
    passed, lines = io.StringIO(), list[str]()
    with redirect_stdout(PrintRouter(passed)):
        print("before")
        with route_prints(lambda: lines.append):
            print("one\ntwo")
            print("ha", end="")
            print("lf")
            print("50%\r100%")
            print("no end", end="")
            sys.stdout.flush()
        print("after")
    assert lines == ["one", "two", "half", "50%", "100%", "no end"]
    assert passed.getvalue() == "before\nafter\n"


def test_tasks_that_run_at_the_same_time_are_told_apart() -> None:
    lines: dict[str, list[str]] = {"a": [], "b": []}

    async def attempt(name: str) -> None:
        with route_prints(lambda: lines[name].append):
            for number in range(3):
                print(name, number)
                await asyncio.sleep(0)
            await asyncio.to_thread(print, name, "in a thread")

    async def both() -> None:
        await asyncio.gather(attempt("a"), attempt("b"))

    with redirect_stdout(PrintRouter(io.StringIO())):
        asyncio.run(both())
    assert lines["a"] == ["a 0", "a 1", "a 2", "a in a thread"]
    assert lines["b"] == ["b 0", "b 1", "b 2", "b in a thread"]


def test_a_line_without_an_end_takes_bounded_memory() -> None:
    lines: list[str] = []
    with redirect_stdout(PrintRouter(io.StringIO())), route_prints(lambda: lines.append):
        for _ in range(100):
            sys.stdout.write("x" * 1000)
    assert lines == ["x" * MAX_LINE + "…"]


def test_where_nobody_listens_nothing_changes() -> None:
    out = io.StringIO()
    with redirect_stdout(out), route_prints(lambda: (_ for _ in ()).throw(AssertionError)):
        print("as ever")
    assert out.getvalue() == "as ever\n"


def test_what_stands_in_for_stdout_is_no_terminal_but_has_its_number() -> None:
    stand_in = PrintRouter(sys.__stderr__ or sys.stderr)
    assert not stand_in.isatty()
    assert stand_in.writable()
    assert stand_in.encoding == "utf-8"
    threading.Thread(target=stand_in.flush).run()
