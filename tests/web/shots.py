"""Writes docs/shots/: the page in a real browser, over runs of a small shop that are made for it.

    python tests/web/shots.py                 the pictures of docs/ui.md
    python tests/web/shots.py --all FOLDER    every kind of page, wide and narrow, light and dark: to look at the design

Names, ids and the folder are fixed, so that a picture changes where the page does.
"""

from __future__ import annotations

import base64
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from playwright.sync_api import Browser, sync_playwright  # noqa: E402

from agentos import client  # noqa: E402
from agentos.web.server import Server  # noqa: E402
from agentos.web.site import Site  # noqa: E402
from tests.web.conftest import CHROMIUM, FLAGS, wait_until  # noqa: E402

TARGET = ROOT / "docs" / "shots"
SHOP = Path("/tmp/shop")
NAMES = Path("/tmp/shop-names")
HOME = Path("/tmp/shop-home")
"""In /tmp, whatever the machine says: the path is part of the picture."""
FILES = {
    ".gitignore": "__pycache__/\n",
    "prices.py": 'PRICES = {"tea": 2.50, "cake": 3.10, "soup": 4.20}\n',
    "cart.py": """\
from prices import PRICES


def line(item: str) -> str:
    return f"{item} {PRICES[item]:.2f}"


def total(items: list[str]) -> str:
    return f"total {sum(map(PRICES.get, items)):.2f}"
""",
    "check.py": """\
from cart import line, total

assert line("tea") == "tea 2.50", line("tea")
assert total(["tea", "cake"]) == "total 5.60", total(["tea", "cake"])
print("2 passed")
""",
    "orders.json": '[{"id": 71, "item": "tea"}, {"id": 72, "item": "soup"}, {"id": 73, "items": ["cake"]}]\n',
    "bill.py": """\
import json
from pathlib import Path

from cart import line


def read() -> list[dict]:
    return json.loads(Path("orders.json").read_text())


def bill(order: dict) -> str:
    print(f"order {order['id']}")
    return line(order["item"])
""",
    "ship.sh": "#!/bin/sh\necho shipped 2.4.0\n",
    "workflows/release.yaml": """\
name: release
params: {version: 2.4.0}
budget: 5
tasks:
  lint: {run: "python -m py_compile cart.py prices.py; echo 2 files", effects: none}
  modules: {run: "echo '[\\"cart\\", \\"prices\\", \\"bill\\", \\"orders\\"]'", output: json, effects: none}
  test:
    needs: lint
    for_each: ${{ tasks.modules.output }}
    as: module
    key: module
    run: "sleep 0.4; echo ${{ module }}: ok"
    effects: none
  cents:
    needs: test
    agent: claude
    prompt: Keep prices as whole cents, in every file.
    verify: python -B check.py
  notes: {needs: cents, run: "echo '- Prices are whole cents.' > CHANGES.md; cat CHANGES.md"}
  ship:
    needs: notes
    approve: Ship ${{ params.version }} to the shop?
    run: ./ship.sh ${{ params.version }}
    effects: external
""",
    "workflows/nightly.yaml": """\
name: nightly
params: {date: "2026-04-12"}
tasks:
  orders: {python: "bill:read", effects: none}
  stock: {run: "echo 'tea 40, cake 12, soup 9'", effects: none}
  bill:
    for_each: ${{ tasks.orders.output }}
    as: order
    key: order.id
    python: bill:bill
    inputs: {order: "${{ order }}"}
    effects: none
    retries: 1
  mail: {needs: [bill, stock], run: "echo mailed", effects: external}
""",
    "workflows/faster.yaml": """\
name: faster
tasks:
  total:
    prompt: Make total() faster, and keep what it prints.
    verify: python -B check.py
    candidates:
      - {agent: command, command: [sed, -i, "s/sum(map(PRICES.get, items))/sum(PRICES[i] for i in items)/", cart.py]}
      - {agent: command, command: [sh, -c, "seq -f '# %g' 9 >> cart.py; echo unrolled"]}
      - {agent: command, command: [sh, -c, "sed -i s/2f/3f/ cart.py; echo three digits"]}
    judge: {run: "echo the shortest change; echo 1"}
""",
    "workflows/rename.yaml": """\
name: rename
tasks:
  find: {run: "grep -l PRICES *.py", effects: none}
  edit:
    needs: find
    run: |
      sed -i s/PRICES/TARIFF/ prices.py; echo 1 of 2
      touch ../shop-home/half; sleep 60
      sed -i s/PRICES/TARIFF/ cart.py; echo 2 of 2
  check: {needs: edit, run: "python -B check.py", effects: none}
  commit: {needs: check, approve: "Commit the new names?", run: "git commit -qam names", effects: external}
""",
    "workflows/sync.yaml": """\
name: sync
tasks:
  fetch: {run: "echo 3 shops", effects: none}
  push: {needs: fetch, run: "seq -f 'shop %g' 3; touch ../shop-home/synced; sleep 300", effects: none}
""",
    "workflows/tone.yaml": """\
name: tone
tasks:
  draft: {run: "echo Our tea costs less. Try it.", effects: none}
  send:
    needs: draft
    approve: {question: "Which tone for the newsletter?", choices: [plain, friendly, formal]}
    run: "echo sent"
    effects: external
""",
}  # fmt: skip
CLAUDE = f"""#!{sys.executable}
import json, pathlib, re, sys, time
if "--version" in sys.argv:
    sys.exit(print("2.1.0"))

def tell(**event):
    print(json.dumps(event), flush=True)

def say(id, *blocks):
    used = {{"input_tokens": 4200, "output_tokens": 180}}
    tell(type="assistant", message={{"id": id, "content": blocks, "usage": used}})

def text(words):
    return {{"type": "text", "text": words}}

def edit(name, pattern, by):
    file = pathlib.Path(name)
    file.write_text(re.sub(pattern, by, file.read_text()))
    return {{"type": "tool_use", "id": name, "name": "Edit", "input": {{"file_path": name}}}}

tell(type="system", subtype="init", session_id=sys.argv[sys.argv.index("--session-id") + 1], model="scripted")
say("1", text("Prices are floats. I make them cents first."), edit("prices.py", r"(\\d)\\.(\\d\\d)", r"\\1\\2"))
time.sleep(0.6)
say("2", text("Now cart.py divides where it prints."), edit("cart.py", r":\\.2f", " / 100:.2f"))
time.sleep(0.4)
done = "Prices are whole cents now; what is printed stays the same."
say("3", text(done))
tell(type="result", subtype="success", result=done, num_turns=3, total_cost_usd=0.31)
"""  # fmt: skip


# --- the runs -------------------------------------------------------------------------------------------------------


@contextmanager
def shop() -> Iterator[None]:
    """A repository and a worktree of it with runs of every kind, one of them under way; all of it gone afterwards."""
    SHOP.mkdir()
    HOME.mkdir()
    os.environ.update(HOME=str(HOME), XDG_STATE_HOME=str(HOME / "state"), TZ="UTC", LANG="C.UTF-8")
    os.environ["PATH"] = f"{HOME / 'bin'}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    time.tzset()
    under_way: list[subprocess.Popen[bytes]] = []
    try:
        write(SHOP, FILES)
        write(HOME, {"bin/claude": CLAUDE, ".gitconfig": "[user]\nname = Ada\nemail = ada@example.com\n"})
        for program in (SHOP / "ship.sh", HOME / "bin" / "claude"):
            program.chmod(0o755)
        for command in ("init -q", "add .", "commit -q -m shop"):
            subprocess.run(["git", *command.split()], cwd=SHOP, check=True)
        os.chdir(SHOP)
        run("faster", "faster-1", "--label=trial")
        run("release", "release-2.3", "--label=prod", "--param=version=2.3.0")
        type_in(SHOP, "approve", "release-2.3", "--reason=checked on staging").wait()
        git("checkout", "-q", ".")
        run("nightly", "nightly-112", "--label=cron")
        run("tone", "tone-3")
        git("worktree", "add", "-q", str(NAMES))
        cut = type_in(NAMES, "run", "rename", "--id=rename-7")
        wait_until((HOME / "half").exists)
        os.killpg(cut.pid, signal.SIGKILL)
        cut.wait()
        run("release", "release-2.4", "--label=prod")
        under_way.append(type_in(SHOP, "run", "sync", "--id=sync-eu"))
        wait_until((HOME / "synced").exists)
        yield
    finally:
        for process in under_way:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        os.chdir(ROOT)
        for folder in (SHOP, NAMES, HOME):
            shutil.rmtree(folder, ignore_errors=True)


def write(folder: Path, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def git(*words: str) -> None:
    subprocess.run(["git", *words], cwd=SHOP, check=True)


def run(workflow: str, id: str, *more: str) -> None:
    type_in(SHOP, "run", workflow, f"--id={id}", *more).wait()


def type_in(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    quiet: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    return subprocess.Popen([sys.executable, "-m", "agentos", *words], cwd=folder, start_new_session=True, **quiet)


# --- the pictures ---------------------------------------------------------------------------------------------------


class Shot(NamedTuple):
    """One look at a page."""

    page: str
    width: int = 1280
    height: int = 800
    dark: bool = False
    see: str = ""
    """What has to be in sight."""


PHONE = 400
PICTURES = {
    "list": [Shot("list", height=600)],
    "waits": [Shot("waits", height=960, dark=True)],
    "failed": [Shot("failed-task")],
    "agent": [Shot("agent-task", dark=True, see="#log ~ p")],
    "compare": [Shot("compare", height=720)],
    "resume": [Shot("resume-cut", height=660, dark=True)],
    "past": [Shot("past")],
    "phone": [Shot("list", PHONE), Shot("waits", PHONE, dark=True), Shot("failed", PHONE)],
}
"""What stands in docs/shots/: several looks stand side by side."""


@contextmanager
def served() -> Iterator[Server]:
    server = Server(Site(SHOP), port=0)
    thread = threading.Thread(target=server.serve)
    thread.start()
    try:
        wait_until(lambda: server.is_up)
        yield server
    finally:
        server.stop()
        thread.join()


def addresses(site: Site) -> dict[str, str]:
    """Every kind of page."""

    def of(run: str, page: str = "run", **query: Any) -> str:
        return site.run_url(client.find_run(run), page, **query)

    first, *_, last = (cut.id for cut in client.Client(SHOP).checkpoints("release-2.4"))
    return {
        "list": "/",
        "none": "/?q=nothing-like-it",
        "filtered": "/?status=failed&status=waiting",
        "waits": of("release-2.4"),
        "complete": of("release-2.3"),
        "failed": of("nightly-112"),
        "failed-task": of("nightly-112", task="bill[73]"),
        "interrupted": of("rename-7"),
        "interrupted-task": of("rename-7", task="edit"),
        "running": of("sync-eu"),
        "running-task": of("sync-eu", task="push"),
        "agent-task": of("release-2.3", task="cents"),
        "candidates": of("faster-1", task="total"),
        "past": of("release-2.4", at=24, task="test[cart]"),
        "gate": of("release-2.4", "gate", gate="approve:ship"),
        "gate-choice": of("tone-3", "gate", gate="approve:send"),
        "gate-answered": of("release-2.3", "gate", gate="approve:ship"),
        "compare": of("release-2.4", "compare", a=first, b=last),
        "restore": of("release-2.4", "restore", checkpoint=first),
        "undo": of("release-2.4", "undo"),
        "fork": of("release-2.4", "fork", checkpoint=last),
        "resume-failed": of("nightly-112", "resume"),
        "resume-cut": of("rename-7", "resume"),
        "again": of("release-2.3", "resume"),
        "problem": "/run/nowhere/never",
    }


def look(browser: Browser, server: Server, to: str, shot: Shot, *, whole: bool = False) -> bytes:
    """A picture of a page as a PNG, of `whole` all that could be scrolled to."""
    context = browser.new_context(
        viewport={"width": shot.width, "height": shot.height}, color_scheme="dark" if shot.dark else "light"
    )
    try:
        page = context.new_page()
        page.goto(server.new_link(to))
        page.locator('[data-state="live"], .one-thing, form').first.wait_for()
        if shot.see:
            page.locator(shot.see).scroll_into_view_if_needed()
        return page.screenshot(full_page=whole)
    finally:
        context.close()


JOIN = """async ([sources, gap, quality]) => {
  const pictures = await Promise.all(sources.map(async (source) => {
    const picture = new Image();
    picture.src = "data:image/png;base64," + source;
    await picture.decode();
    return picture;
  }));
  const canvas = document.createElement("canvas");
  canvas.width = pictures.reduce((sum, one) => sum + one.width + gap, -gap);
  canvas.height = Math.max(...pictures.map((one) => one.height));
  let left = 0;
  for (const one of pictures) { canvas.getContext("2d").drawImage(one, left, 0); left += one.width + gap; }
  return canvas.toDataURL("image/webp", quality).split(",")[1];
}"""


def join(browser: Browser, pictures: list[bytes]) -> bytes:
    """Several pictures side by side, as a WebP: a fifth of the PNGs."""
    page = browser.new_page()
    try:
        sources = [base64.b64encode(one).decode() for one in pictures]
        return base64.b64decode(page.evaluate(JOIN, [sources, 24, 0.8]))
    finally:
        page.close()


def main(arguments: list[str]) -> None:
    if CHROMIUM is None:
        sys.exit("There is no browser. As root: make browser")
    every = Path(arguments[1]).absolute() if arguments[:1] == ["--all"] else None
    (every or TARGET).mkdir(parents=True, exist_ok=True)
    with shop(), served() as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        pages = addresses(Site(SHOP))
        if every is None:
            for name, shots in PICTURES.items():
                picture = join(browser, [look(browser, server, pages[shot.page], shot) for shot in shots])
                (TARGET / f"{name}.webp").write_bytes(picture)
                print(f"{name}.webp: {len(picture) // 1000} kB")
        else:
            for name, width, dark in product(pages, (1280, 800, PHONE), (False, True)):
                picture = look(browser, server, pages[name], Shot(name, width, dark=dark), whole=True)
                (every / f"{name}-{width}-{'dark' if dark else 'light'}.png").write_bytes(picture)
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1:])
