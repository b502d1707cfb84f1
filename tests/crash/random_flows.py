"""Workflows made by chance, as the text of a file: the same text for the same chance."""

from __future__ import annotations

import random
from collections.abc import Callable

HEAD = '''"""Made by chance: {name}"""

from __future__ import annotations

import asyncio
import time

from tests.crash.children.witness import effect_of, executions, is_approved, main, saw

from agentos import Context, Workflow

flow = Workflow("soak", schedule={schedule!r}, max_concurrency={width}, decision_points={points!r})
SOON = {{"retries": 6, "backoff_s": 0.01}}

def injected(ctx: Context) -> str:
    saw(ctx)
    return "injected"
'''
TAIL = """
if __name__ == "__main__":
    main(flow)
"""


def random_flow(name: str, chance: random.Random) -> str:
    """A workflow of 4 to 16 tasks in up to 6 layers."""
    head = HEAD.format(
        name=name,
        schedule=chance.choice(("layers", "layers", "ready")),
        width=chance.choice((1, 2, 4, 16)),
        points=chance.choice(("never", "never", "never", "per_layer")),
    )
    if "'ready'" in head:
        head = head.replace("decision_points='per_layer'", "decision_points='never'")
    tasks: list[str] = []
    names: list[str] = []
    layers = chance.randint(2, 6)
    for number in range(chance.randint(4, 16)):
        layer = number % layers
        earlier = [known for known in names if int(known.rpartition("_")[2]) < layer]
        needs = sorted(chance.sample(earlier, min(len(earlier), chance.randint(0, 3))))
        make = chance.choices(list(_MADE), weights=list(_MADE.values()))[0]
        made, text = make(number, layer, needs, chance)
        names.append(made)
        tasks.append(text)
    return head + "".join(tasks) + TAIL


Made = tuple[str, str]


def _pause(chance: random.Random) -> str:
    return f"{chance.choice((0, 0, 0.005, 0.02, 0.05))}"


def _sync(number: int, layer: int, needs: list[str], chance: random.Random) -> Made:
    name = f"sync{number}_{layer}"
    return (
        name,
        f"""
@flow.task(needs={needs!r})
def {name}(ctx: Context) -> dict[str, int]:
    saw(ctx)
    time.sleep({_pause(chance)})
    ctx.message({name!r}, {number})
    return {{"n": {number}}}
""",
    )


def _async(number: int, layer: int, needs: list[str], chance: random.Random) -> Made:
    name = f"async{number}_{layer}"
    return (
        name,
        f"""
@flow.task(needs={needs!r})
async def {name}(ctx: Context) -> str:
    saw(ctx)
    await asyncio.sleep({_pause(chance)})
    ctx.set("shared", {name!r})
    return {name!r} * {chance.choice((1, 1, 100, 5000))}
""",
    )


def _flaky(number: int, layer: int, needs: list[str], chance: random.Random) -> Made:
    name = f"flaky{number}_{layer}"
    return (
        name,
        f"""
@flow.task(needs={needs!r}, retries=SOON)
def {name}(ctx: Context) -> int:
    saw(ctx)
    if executions({name!r}) < {chance.randint(2, 4)}:
        raise RuntimeError("not yet")
    return {number}
""",
    )


def _hopeless(number: int, layer: int, needs: list[str], chance: random.Random) -> Made:
    name = f"hopeless{number}_{layer}"
    return (
        name,
        f"""
@flow.task(needs={needs!r}, retries={{"retries": {chance.randint(0, 2)}, "backoff_s": 0.01}}, continue_on_error=True)
async def {name}(ctx: Context) -> None:
    saw(ctx)
    raise ValueError("never")
""",
    )


def _each(number: int, layer: int, needs: list[str], chance: random.Random) -> Made:
    name = f"each{number}_{layer}"
    return (
        name,
        f"""
@flow.task(needs={needs!r}, for_each=list(range({chance.randint(0, 6)})), as_="item")
def {name}(item: int, ctx: Context) -> int:
    saw(ctx)
    time.sleep({_pause(chance)})
    return item * {number}
""",
    )


def _shell(number: int, layer: int, needs: list[str], chance: random.Random) -> Made:
    name = f"shell{number}_{layer}"
    return (
        name,
        f'''
flow.add({name!r}, "shell", needs={needs!r}, effects="none", run="""
printf '{{"attempt_id": "%s"}}\\\\n' "$AGENTOS_ATTEMPT_ID" >> "$CRASH_TRACE"; sleep {_pause(chance)}; echo {number}
""")
''',
    )


def _effect(number: int, layer: int, needs: list[str], chance: random.Random) -> Made:
    name = f"effect{number}_{layer}"
    return (
        name,
        f"""
@flow.task(needs={needs!r}, effects="external")
def {name}(ctx: Context) -> dict[str, str]:
    saw(ctx)
    time.sleep({_pause(chance)})
    return effect_of({name!r})
""",
    )


def _guarded(number: int, layer: int, needs: list[str], chance: random.Random) -> Made:
    name = f"guarded{number}_{layer}"
    return (
        name,
        f"""
@flow.task(needs={needs!r}, approve="May {name} run?")
def {name}(ctx: Context) -> int:
    saw(ctx, approved=is_approved(ctx, "approve:{name}"))
    return {number}
""",
    )


def _injecting(number: int, layer: int, needs: list[str], chance: random.Random) -> Made:
    name = f"injecting{number}_{layer}"
    return (
        name,
        f"""
@flow.task(needs={needs!r})
def {name}(ctx: Context) -> str:
    saw(ctx)
    ctx.inject("more{number}", python="flow:injected", needs=[{name!r}])
    return "asked for more"
""",
    )


_MADE: dict[Callable[[int, int, list[str], random.Random], Made], int] = {
    _sync: 4,
    _async: 4,
    _flaky: 2,
    _hopeless: 1,
    _each: 2,
    _shell: 2,
    _effect: 1,
    _guarded: 1,
    _injecting: 1,
}
"""What tasks there are, and how often each is drawn."""
