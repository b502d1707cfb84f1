"""Signed answers from the command line: made, carried over from elsewhere, shown, and refused with what to do."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from agentos.exceptions import CommandRefusedError
from agentos.workflow.place.signatures import verify
from tests.cli.conftest import SOURCES, Agentos
from tests.cli.signing import (
    SHIP,
    commit_all,
    make_key,
    make_repository,
    name_signers,
    public_half,
    shown_gates,
    sign_text,
    text_to_sign,
    write_flow,
)
from tests.forks import start_forked


@pytest.fixture
def ada(tmp_path: Path) -> Path:
    return make_key(tmp_path, "ada")


@pytest.fixture
def repo(tmp_path: Path, home: Path, ada: Path) -> Path:
    make_repository(tmp_path / "repo", {"ada@example.com": ada})
    return tmp_path / "repo"


@pytest.fixture
def waiting(agentos: Agentos, repo: Path) -> Path:
    assert agentos("run", "flow.yaml", "--id", "r", cwd=repo).code == 3
    return repo


def fingerprint(key: Path) -> str:
    done = subprocess.run(["ssh-keygen", "-l", "-f", key], check=True, capture_output=True, text=True)
    return done.stdout.split()[1]


def test_a_signed_yes_lets_it_run_and_is_kept_with_who_signed(agentos: Agentos, waiting: Path, ada: Path) -> None:
    assert "agentos approve r approve:ship --sign" in agentos("inbox", cwd=waiting).out
    done = agentos("approve", "r", "--sign", "--key", ada, "--reason", "looked", cwd=waiting)
    assert done.code == 0, done.err
    assert (waiting / "shipped").read_text() == "shipped\n"
    gate = shown_gates(agentos, waiting)["approve:ship"]
    assert gate["author"] == f"ada@example.com (signed, {fingerprint(ada)})"
    assert gate["signed"]["principal"] == "ada@example.com"
    assert gate["author"] in agentos("show", "r", cwd=waiting).out
    [decision] = json.loads(agentos("why", "r", "ship", "--json", cwd=waiting).out)["decisions"]
    assert decision["signed"] == gate["signed"]


def test_what_is_kept_is_verified_by_ssh_keygen_alone(
    agentos: Agentos, waiting: Path, ada: Path, tmp_path: Path
) -> None:
    assert agentos("approve", "r", "--sign", "--key", ada, cwd=waiting).code == 0
    shown = json.loads(agentos("show", "r", "--json", cwd=waiting).out)
    [signed] = [gate["signed"] for gate in shown["gates"]]
    (tmp_path / "signature").write_text(signed["signature"])
    command = ["ssh-keygen", "-Y", "verify", "-f", str(waiting / ".agentos-signers"), "-I", "ada@example.com"]
    command += ["-n", "agentos-gate", "-s", str(tmp_path / "signature")]
    subprocess.run(command, input=signed["text"].encode(), check=True)
    text = json.loads(signed["text"])
    assert (text["run"], text["gate"], text["question"], text["answer"]) == ("r", "approve:ship", "Ship it?", "approve")
    assert list(text["files"]) == ["ship.sh"]
    assert text["signers"] == shown["signers"]["commit"]


def test_it_is_about_the_newest_snapshot_of_the_files(agentos: Agentos, repo: Path) -> None:
    write_flow(repo, {"build": {"run": "echo built > built"}, "ship": {**SHIP["ship"], "needs": "build"}})
    commit_all(repo)
    assert agentos("run", "flow.yaml", "--id", "r", cwd=repo).code == 3
    tree = json.loads(text_to_sign(agentos, repo))["tree"]
    events = [json.loads(line) for line in agentos("events", "r", "--json", cwd=repo).out.splitlines()]
    assert tree in [event.get("tree") for event in events]


def test_a_plain_yes_is_refused_with_the_command_that_signs(agentos: Agentos, waiting: Path) -> None:
    done = agentos("approve", "r", cwd=waiting)
    assert done.code == 2
    assert "takes a signed yes, and this one is not signed" in done.err
    assert "agentos approve r approve:ship --sign" in done.err
    assert not (waiting / "shipped").exists()
    assert shown_gates(agentos, waiting)["approve:ship"]["open"]


def test_a_no_needs_no_signature_and_may_have_one(agentos: Agentos, waiting: Path, ada: Path) -> None:
    assert agentos("reject", "r", "--reason", "not today", cwd=waiting).code == 0
    assert shown_gates(agentos, waiting)["approve:ship"]["signed"] is None
    assert agentos("run", "flow.yaml", "--id", "other", cwd=waiting).code == 3
    assert agentos("reject", "other", "--sign", "--key", ada, cwd=waiting).code == 0
    gate = shown_gates(agentos, waiting, "other")["approve:ship"]
    assert (gate["answer"], gate["signed"]["principal"]) == ("rejected", "ada@example.com")
    assert json.loads(gate["signed"]["text"])["answer"] == "reject"


def test_a_signature_can_be_made_on_another_machine(agentos: Agentos, waiting: Path, ada: Path, tmp_path: Path) -> None:
    text = text_to_sign(agentos, waiting, "--reason", "from my laptop")
    assert shown_gates(agentos, waiting)["approve:ship"]["open"]
    signature = sign_text(text, ada, tmp_path)
    done = agentos("approve", "r", "--signature", signature, "--reason", "from my laptop", cwd=waiting)
    assert done.code == 0, done.err
    assert (waiting / "shipped").exists()


def test_a_gate_that_takes_no_signature_says_so(agentos: Agentos, repo: Path, ada: Path) -> None:
    write_flow(repo, {"ship": {"approve": "Ship it?", "run": "./ship.sh"}})
    assert agentos("run", "flow.yaml", "--id", "r", cwd=repo).code == 3
    done = agentos("approve", "r", "--sign", "--key", ada, cwd=repo)
    assert done.code == 2
    assert "takes no signature" in done.err


def test_a_choice_is_signed(agentos: Agentos, repo: Path, ada: Path) -> None:
    asked = {"question": "Send it?", "choices": ["send", "revise"], "by": "signed"}
    write_flow(repo, {"look": {"approval": asked}, "go": {"needs": "look", "run": "touch gone"}})
    assert agentos("run", "flow.yaml", "--id", "r", cwd=repo).code == 3
    assert "agentos approve r approval:look --sign --choose send" in agentos("inbox", cwd=repo).out
    for more in (["--sign", "--key", ada], ["--print-to-sign"], ["--sign", "--key", ada, "--choose", "sent"]):
        refused = agentos("approve", "r", *more, cwd=repo)
        assert (refused.code, refused.out) == (2, "")
        assert "\n  agentos approve r approval:look --sign --choose revise\n" in refused.err
        assert "Signing" not in refused.err, "no key is asked for what cannot count"
    assert agentos("approve", "r", "--sign", "--key", ada, "--choose", "revise", cwd=repo).code == 0
    gate = shown_gates(agentos, repo)["approval:look"]
    assert json.loads(gate["signed"]["text"])["choice"] == "revise"
    assert (repo / "gone").exists()


def test_a_driver_at_work_verifies_what_comes_into_its_inbox(
    agentos: Agentos, repo: Path, ada: Path, tmp_path: Path
) -> None:
    write_flow(repo, {**SHIP, "other": {"run": "while ! test -e go; do sleep 0.02; done", "effects": "none"}})
    mallory = make_key(tmp_path, "mallory")
    environment = {**os.environ, "PYTHONPATH": str(SOURCES)}
    driver = start_forked("-m", "agentos", "run", "flow.yaml", "--id", "r", cwd=repo, env=environment)
    try:
        while "approve:ship" not in agentos("inbox", cwd=repo).out:
            assert driver.poll() is None
        refused = agentos("approve", "r", "--sign", "--key", mallory, cwd=repo)
        assert (refused.code, "of nobody whom .agentos-signers names" in refused.err) == (2, True), refused.err
        assert agentos("approve", "r", "--sign", "--key", ada, cwd=repo).code == 0
        (repo / "go").touch()
        assert driver.wait() == 0
    finally:
        driver.kill()
    assert (repo / "shipped").read_text() == "shipped\n"
    assert shown_gates(agentos, repo)["approve:ship"]["signed"]["principal"] == "ada@example.com"


@pytest.fixture
def ssh_agent(ada: Path, tmp_path: Path) -> Iterator[dict[str, str]]:
    """An ssh-agent that has ada's key, and no file of it is left."""
    socket = tmp_path / "agent.sock"
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", socket], stdout=subprocess.DEVNULL)
    try:
        while not socket.exists():
            assert agent.poll() is None
        env = {"SSH_AUTH_SOCK": str(socket)}
        subprocess.run(["ssh-add", "-q", ada], env={**os.environ, **env}, check=True)
        ada.unlink()
        yield env
    finally:
        agent.terminate()
        agent.wait()


def test_the_key_of_ssh_agent_signs(agentos: Agentos, waiting: Path, ssh_agent: dict[str, str]) -> None:
    done = agentos("approve", "r", "--sign", cwd=waiting, env=ssh_agent)
    assert done.code == 0, done.err
    assert "Signing with the first key of ssh-agent." in done.err
    assert (waiting / "shipped").exists()


def test_a_public_key_chooses_among_those_of_ssh_agent(
    agentos: Agentos, waiting: Path, ssh_agent: dict[str, str], tmp_path: Path
) -> None:
    done = agentos("approve", "r", "--sign", "--key", tmp_path / "key-ada.pub", cwd=waiting, env=ssh_agent)
    assert done.code == 0, done.err


def test_the_key_of_git_signs_and_else_that_of_the_user(agentos: Agentos, waiting: Path, ada: Path, home: Path) -> None:
    for name, value in (("gpg.format", "ssh"), ("user.signingkey", str(ada))):
        subprocess.run(["git", "-C", waiting, "config", name, value], check=True)
    done = agentos("approve", "r", "--sign", cwd=waiting, env={"SSH_AUTH_SOCK": ""})
    assert done.code == 0, done.err
    assert "git's user.signingkey" in done.err


def test_without_a_key_it_says_how_to_name_one(agentos: Agentos, waiting: Path) -> None:
    done = agentos("approve", "r", "--sign", cwd=waiting, env={"SSH_AUTH_SOCK": ""})
    assert done.code == 2
    assert "there is no key to sign with" in done.err
    assert "--key FILE" in done.err
    assert shown_gates(agentos, waiting)["approve:ship"]["open"]


def test_a_key_that_does_not_sign_answers_nothing(agentos: Agentos, waiting: Path, tmp_path: Path) -> None:
    (tmp_path / "no-key").write_text("nothing\n")
    (tmp_path / "no-key").chmod(stat.S_IRUSR)
    done = agentos("approve", "r", "--sign", "--key", tmp_path / "no-key", cwd=waiting)
    assert done.code == 2
    assert "nothing was signed" in done.err
    assert shown_gates(agentos, waiting)["approve:ship"]["open"]


def without_ssh_keygen(folder: Path) -> dict[str, str]:
    """A PATH with git on it and nothing of OpenSSH."""
    folder.mkdir()
    for name in ("git", "sh", "env"):
        found = subprocess.run(["which", name], check=True, capture_output=True, text=True).stdout.strip()
        (folder / name).symlink_to(found)
    return {"PATH": str(folder)}


def test_without_ssh_keygen_no_run_begins_and_no_answer_counts(
    agentos: Agentos, waiting: Path, ada: Path, tmp_path: Path
) -> None:
    signature = sign_text(text_to_sign(agentos, waiting), ada, tmp_path)
    bare = without_ssh_keygen(tmp_path / "bin")
    for arguments in (["run", "flow.yaml"], ["approve", "r", "--sign", "--key", ada]):
        done = agentos(*arguments, cwd=waiting, env=bare)
        assert (done.code, "ssh-keygen is not installed here, or not on PATH" in done.err) == (2, True), done.err
    done = agentos("approve", "r", "--signature", signature, cwd=waiting, env=bare)
    assert (done.code, "the signature does not count: ssh-keygen is not installed" in done.err) == (2, True), done.err
    assert not (waiting / "shipped").exists()
    assert agentos("approve", "r", "--signature", signature, cwd=waiting).code == 0


@pytest.mark.parametrize(
    ("signers", "said"),
    [
        (None, "has no file .agentos-signers"),
        ("# nobody\n", "names nobody"),
        ("ada@example.com\n", "names nobody"),
        ("é" * 40_000, "more than 65536 bytes"),
    ],
)
def test_a_run_that_nobody_could_sign_for_does_not_begin(
    agentos: Agentos, repo: Path, signers: str | None, said: str
) -> None:
    if signers is None:
        (repo / ".agentos-signers").unlink()
    else:
        (repo / ".agentos-signers").write_text(signers)
    commit_all(repo)
    done = agentos("run", "flow.yaml", "--id", "r", cwd=repo)
    assert (done.code, said in done.err) == (2, True), done.err
    assert "git add .agentos-signers && git commit" in done.err
    checked = agentos("check", "flow.yaml", cwd=repo)
    assert "a run would be refused" in checked.out + checked.err


def test_a_repository_without_a_commit_names_nobody(agentos: Agentos, tmp_path: Path, home: Path) -> None:
    subprocess.run(["git", "init", "-q", tmp_path / "new"], check=True)
    write_flow(tmp_path / "new", SHIP)
    done = agentos("run", "flow.yaml", cwd=tmp_path / "new")
    assert (done.code, "there is no commit yet" in done.err) == (2, True), done.err


def test_a_timeout_signs_nothing(agentos: Agentos, repo: Path) -> None:
    asked = {"question": "Ship it?", "by": "signed", "timeout_s": 1, "on_timeout": "approve"}
    write_flow(repo, {"ship": {"approve": asked, "run": "./ship.sh"}})
    done = agentos("run", "flow.yaml", cwd=repo)
    assert done.code == 2
    assert "a timeout can only reject" in done.err


def test_a_key_whose_time_is_over_signs_nothing(agentos: Agentos, repo: Path, ada: Path) -> None:
    name_signers(repo, {"ada@example.com": ada}, 'valid-before="20200101" ')
    commit_all(repo)
    assert agentos("run", "flow.yaml", "--id", "old", cwd=repo).code == 3
    done = agentos("approve", "old", "--sign", "--key", ada, cwd=repo)
    assert (done.code, "expired" in done.err) == (2, True), done.err


def test_what_a_key_signed_in_its_time_holds_afterwards(repo: Path, ada: Path, tmp_path: Path) -> None:
    name_signers(repo, {"ada@example.com": ada}, 'valid-before="20200101" ')
    signers, signature = (repo / ".agentos-signers").read_text(), sign_text("a text", ada, tmp_path).read_text()
    signed = verify("a text", signature, signers, at=datetime(2019, 6, 1, tzinfo=UTC))
    assert (signed.principal, signed.key) == ("ada@example.com", fingerprint(ada))
    with pytest.raises(CommandRefusedError, match="expired"):
        verify("a text", signature, signers, at=datetime(2021, 6, 1, tzinfo=UTC))


def test_only_names_that_a_pattern_takes_in_and_its_namespace_count(agentos: Agentos, repo: Path, ada: Path) -> None:
    line = f'*@example.com namespaces="agentos-gate" {public_half(ada)}\n'
    (repo / ".agentos-signers").write_text(line)
    commit_all(repo)
    assert agentos("run", "flow.yaml", "--id", "r", cwd=repo).code == 3
    done = agentos("approve", "r", "--sign", "--key", ada, cwd=repo)
    assert done.code == 0, done.err
    (repo / ".agentos-signers").write_text(line.replace("agentos-gate", "git"))
    commit_all(repo)
    assert agentos("run", "flow.yaml", "--id", "git-only", cwd=repo).code == 3
    done = agentos("approve", "git-only", "--sign", "--key", ada, cwd=repo)
    assert (done.code, "does not count" in done.err) == (2, True), done.err


def test_an_item_of_a_fan_out_waits_for_the_one_signature(agentos: Agentos, repo: Path, ada: Path) -> None:
    each = {**SHIP["ship"], "for_each": ["a", "b"], "run": "echo ${{ item }} >> shipped", "effects": "external"}
    write_flow(repo, {"ship": each})
    assert agentos("run", "flow.yaml", "--id", "r", cwd=repo).code == 3
    assert agentos("approve", "r", cwd=repo).code == 2
    assert agentos("approve", "r", "--sign", "--key", ada, cwd=repo).code == 0
    assert sorted((repo / "shipped").read_text().split()) == ["a", "b"]
