"""`agentos demo --ui`, as somebody would go through it who has just installed AgentOS."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from playwright.sync_api import Page, expect

from tests.forks import SOURCE


@pytest.mark.full
def test_a_run_is_resumed_killed_resumed_again_and_approved_on_the_page(
    tmp_path: Path, new_page: Callable[..., Page]
) -> None:
    variables = {"PYTHONPATH": str(SOURCE), "TMPDIR": str(tmp_path), "DISPLAY": "", "WAYLAND_DISPLAY": ""}
    demo = subprocess.Popen(
        [sys.executable, "-m", "agentos", "demo", "--ui"],
        cwd=tmp_path,
        env={**os.environ, **variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert demo.stdin is not None
        assert demo.stdout is not None
        link = next(line.strip() for line in demo.stdout if "/enter?token=" in line)
        page = new_page(SimpleNamespace(new_link=lambda to: link))
        page.locator(".row-link", has_text="demo").click()
        head = page.locator(".run-head .status").first
        resume(page)
        expect(head).to_contain_text("running", timeout=20_000)
        demo.stdin.write("\n")
        demo.stdin.flush()
        assert next(line for line in demo.stdout if line.startswith("$ kill -9 "))
        expect(head).to_contain_text("interrupted", timeout=20_000)
        resume(page)
        page.get_by_role("button", name="Approve").click()
        expect(head).to_contain_text("complete", timeout=20_000)
        demo.send_signal(signal.SIGINT)
        assert demo.wait(20) == 0
    finally:
        demo.kill()
        demo.communicate()
    assert list(tmp_path.iterdir()) == []


def resume(page: Page) -> None:
    """By its plan, which is shown first."""
    page.get_by_role("link", name="Resume").click()
    page.get_by_role("button", name="Resume").click()
