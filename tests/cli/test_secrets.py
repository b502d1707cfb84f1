"""A whole run of the real program, in which everything lets the secret out: nothing of it is stored or printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Agentos
from tests.workflow.test_secrets import MASK, NAME, SECRET, assert_nothing_kept, let_out

FLOW = """
import base64, json, logging, os, sys, threading
from urllib.parse import quote
from agentos import Workflow

flow = Workflow("loud", secrets=["DEPLOY_TOKEN"])
SECRET = os.environ.get("DEPLOY_TOKEN", "")
WAYS = [SECRET, quote(SECRET, safe=""), json.dumps(SECRET), base64.b64encode(b"x" + SECRET.encode()).decode()]

flow.add("shell", "shell", run="echo printed: ${{ secrets.DEPLOY_TOKEN }}; echo $DEPLOY_TOKEN >&2", effects="none")

@flow.task
def prints(ctx):
    for way in WAYS:
        print("printed:", way)
        print(way, file=sys.stderr)
        logging.warning("logged: %s", way)
        ctx.progress(way)
        ctx.message("user", way)
    sys.stdout.buffer.write(SECRET.encode() + b"\\n")
    for sign in SECRET:
        print(sign, end="", flush=True)
    print()
    thread = threading.Thread(target=print, args=(SECRET,))
    thread.start()
    thread.join()
    return WAYS

@flow.task
def raises():
    raise ValueError(" ".join(WAYS))
"""


@pytest.mark.parametrize("flags", [(), ("--verbose",), ("--quiet",), ("--json",)])
def test_nothing_is_printed_or_kept(agentos: Agentos, tmp_git_repo: Path, flags: tuple[str, ...], home: Path) -> None:
    (tmp_git_repo / "flow.py").write_text(FLOW)
    env = {NAME: SECRET}
    ran = agentos("run", "flow.py", "--id", "loud", *flags, cwd=tmp_git_repo, env=env)
    assert ran.code == 1, ran.err
    for command in (("show", "loud"), ("events", "loud", "--json"), ("logs", "loud"), ("why", "loud", "raises")):
        done = agentos(*command, cwd=tmp_git_repo)
        assert done.code == 0, done.err
        assert let_out(SECRET, (done.out + done.err).encode()) == []
        assert MASK in done.out or command[0] == "why"
    assert let_out(SECRET, (ran.out + ran.err).encode()) == []
    assert MASK in ran.out + ran.err
    assert_nothing_kept(tmp_git_repo / ".agentos")


def test_a_secret_that_is_not_set_is_told_before_anything_runs(
    agentos: Agentos, tmp_git_repo: Path, home: Path
) -> None:
    (tmp_git_repo / "flow.py").write_text(FLOW)
    done = agentos("run", "flow.py", cwd=tmp_git_repo)
    assert done.code == 2
    assert "needs DEPLOY_TOKEN, which is not set" in done.err
    assert "export DEPLOY_TOKEN=" in done.err


def test_a_parameter_that_is_a_secret_is_refused(agentos: Agentos, tmp_git_repo: Path, home: Path) -> None:
    (tmp_git_repo / "flow.yaml").write_text(
        "name: asks\nparams: {token: none}\n"
        'tasks:\n  a: {run: "test ${{ params.token }} = \\"$DEPLOY_TOKEN\\" && echo same", effects: none}\n'
    )
    env = {NAME: "a-token-that-nobody-knows"}
    refused = agentos("run", "flow.yaml", "--param", f"token={env[NAME]}", cwd=tmp_git_repo, env=env)
    assert refused.code == 2
    assert "token=env:DEPLOY_TOKEN" in refused.err
    assert env[NAME] not in refused.err
    good = agentos("run", "flow.yaml", "--id", "good", "--param", f"token=env:{NAME}", cwd=tmp_git_repo, env=env)
    assert good.code == 0, good.err
    assert agentos("logs", "good", cwd=tmp_git_repo).out == "same\n"
    assert_nothing_kept(tmp_git_repo / ".agentos", env[NAME])


def test_settings_name_more_secrets(agentos: Agentos, tmp_git_repo: Path, home: Path) -> None:
    (tmp_git_repo / "agentos.toml").write_text('secrets = ["FAVOURITE_DISH"]\n')
    (tmp_git_repo / "flow.yaml").write_text('name: eats\ntasks:\n  a: {run: "echo $FAVOURITE_DISH", effects: none}\n')
    env = {"FAVOURITE_DISH": "fish-and-chips"}
    assert agentos("run", "flow.yaml", "--id", "eats", cwd=tmp_git_repo, env=env).code == 0
    assert agentos("logs", "eats", cwd=tmp_git_repo).out == "[secret:FAVOURITE_DISH]\n"
