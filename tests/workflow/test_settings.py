"""Settings: file, variables, arguments, in that order of rising weight; whatever is wrong is told in one message."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from agentos import Client, Workflow, run
from agentos.client import resolve_drive_options
from agentos.exceptions import WorkflowConfigurationError
from agentos.tasks.cluster.cluster_settings import DaskSettings
from agentos.tasks.llm.model_settings import CallLimits, LlmDefaults, Price
from agentos.tasks.process.sandbox_settings import SandboxPaths
from agentos.workflow.expiry.rules import Retention
from agentos.workflow.place.location import find_location
from agentos.workflow.place.settings import KINDS, Settings, explain_settings, load_settings
from agentos.workflow.start.ready_run import DriveOptions
from tests.conftest import git, trust

EVERY_KIND = """
database = ".agentos/other.db"
repository = "team/app"
durability = "process"
keep = 3
lease_s = 20
space_warning = "100 MB"
max_concurrency = 2
gates = "reject"
secrets = ["DEPLOY_TOKEN", "DEPLOY_TOKEN", "OTHER"]
on_wait = ["notify", "waiting; $(rm -rf /)"]
on_end = []
log_limit = 4096
llm = {base_url = "http://localhost:11434/v1", key_command = ["pass", "show", "x"]}
limits.OPENAI_API_KEY = {slots = 2, per_minute = 60, per_day_usd = 5}
limits.claude = {slots = 1}
prices."gpt-x.1" = {input_per_million = 2, output_per_million = 8.5}
retention = {complete = "30d", keep_last = 100}
dask = {scheduler = "tls://scheduler:8786"}
sandbox = {read = ["~/.pyenv"], write = ["/var/cache/x"], env = ["JAVA_HOME"]}
"""
READ = Settings(
    database=".agentos/other.db",
    repository="team/app",
    durability="process",
    keep=3,
    lease_s=20.0,
    space_warning=100_000_000,
    max_concurrency=2,
    gates="reject",
    secrets=("DEPLOY_TOKEN", "OTHER"),
    on_wait=("notify", "waiting; $(rm -rf /)"),
    on_end=(),
    log_limit=4096,
    llm=LlmDefaults(base_url="http://localhost:11434/v1", key_command=("pass", "show", "x")),
    limits={"OPENAI_API_KEY": CallLimits(slots=2, per_minute=60, per_day_usd=5.0), "claude": CallLimits(slots=1)},
    prices={"gpt-x.1": Price(input_per_million=2.0, output_per_million=8.5)},
    retention=Retention(complete="30d", keep_last=100),
    dask=DaskSettings(scheduler="tls://scheduler:8786"),
    sandbox=SandboxPaths(read=("~/.pyenv",), write=("/var/cache/x",), env=("JAVA_HOME",)),
)


def refusal(root: Path, environ: dict[str, str] | None = None) -> str:
    with pytest.raises(WorkflowConfigurationError) as told:
        load_settings(root, environ or {})
    assert told.value.next_step
    return str(told.value)


def test_without_a_file_everything_is_default(tmp_path: Path) -> None:
    assert load_settings(tmp_path, {}) == Settings()
    explained = explain_settings(tmp_path, {})
    assert [one.name for one in explained] == list(KINDS) == list(Settings.__struct_fields__)
    assert {one.source for one in explained} == {"default"}


def test_every_setting_can_stand_in_agentos_toml(tmp_path: Path) -> None:
    (tmp_path / "agentos.toml").write_text(EVERY_KIND)
    assert load_settings(tmp_path, {}) == READ


def test_every_setting_can_stand_in_pyproject(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(f'[project]\nname = "x"\n[tool.agentos]\n{EVERY_KIND}')
    assert load_settings(tmp_path, {}) == READ
    assert {one.source for one in explain_settings(tmp_path, {})} == {"pyproject.toml"}


def test_the_database_may_be_named_in_pyproject(tmp_git_repo: Path) -> None:
    (tmp_git_repo / "pyproject.toml").write_text('[tool.agentos]\ndatabase = "state/a.db"\n')
    location = find_location(tmp_git_repo)
    assert location.database == str(tmp_git_repo / "state" / "a.db")
    assert location.why == f"{tmp_git_repo}/pyproject.toml names it"


def test_both_files_are_refused_and_both_are_named(tmp_git_repo: Path) -> None:
    (tmp_git_repo / "agentos.toml").write_text("keep = 1")
    (tmp_git_repo / "pyproject.toml").write_text("[tool.agentos]\nkeep = 2")
    assert "agentos.toml and [tool.agentos] in" in refusal(tmp_git_repo)
    with pytest.raises(WorkflowConfigurationError, match=r"^Cannot determine .*agentos.toml and \[tool.agentos\]"):
        find_location(tmp_git_repo)


@pytest.mark.parametrize("text", ['[project]\ndependencies = ["agentos-workflow"]', "agentos = [broken", "\xff"])
def test_a_pyproject_that_is_not_about_us_is_left_alone(tmp_path: Path, text: str) -> None:
    (tmp_path / "pyproject.toml").write_bytes(text.encode("latin-1"))
    assert load_settings(tmp_path, {}) == Settings()


def test_a_variable_outweighs_the_file_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "agentos.toml").write_text("keep = 3\ngates = 'wait'\n")
    environ = {
        "AGENTOS_KEEP": " 7 ",
        "AGENTOS_GATES": "  ",  # blank: as if it were not set
        "AGENTOS_SECRETS": "A, B,,",
        "AGENTOS_ON_END": "notify 'two words' $(x)",
        "AGENTOS_SPACE_WARNING": "1.5 GiB",
        "AGENTOS_WORKFLOW_DB": "postgresql://ada:secret@host/db",
    }
    environ["AGENTOS_LIMITS"] = '{"K": {"slots": 3}}'
    settings = load_settings(tmp_path, environ)
    assert settings.limits == {"K": CallLimits(slots=3)}
    assert (settings.keep, settings.gates, settings.secrets) == (7, "wait", ("A", "B"))
    assert settings.on_end == ("notify", "two words", "$(x)")
    assert settings.space_warning == 3 * 1024**3 // 2
    shown = {one.name: (one.value, one.source) for one in explain_settings(tmp_path, environ)}
    assert shown["keep"] == (7, "AGENTOS_KEEP")
    assert shown["gates"] == ("wait", "agentos.toml")
    assert shown["lease_s"] == (15.0, "default")
    assert shown["database"] == ("postgresql://ada:***@host/db", "AGENTOS_WORKFLOW_DB")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kep = 3", "Did you mean `keep`?"),
        ("zzz = 3", "There are: database, repository, durability"),
        ("keep = -1", "`keep` in"),
        ("keep = true", "is True"),
        ("keep = 2.5", "Allowed: a whole number, 0 or more"),
        ("keep = '3'", "Allowed: a whole number"),
        ("max_concurrency = 0", "Allowed: a whole number, 1 or more"),
        ("lease_s = 1", "Allowed: seconds, from 3 to 86400"),
        ("lease_s = nan", "Allowed: seconds"),
        ("durability = 'paper'", 'Allowed: "full" or "process"'),
        ("gates = ['stop']", 'Allowed: "stop" or "wait" or "reject"'),
        ("space_warning = '100 elephants'", "100 elephants"),
        ("space_warning = -5", "Allowed: a number of bytes"),
        ("secrets = 'TOKEN'", "Allowed: a list of names"),
        ("secrets = ['not a name']", "Allowed: a list of names"),
        ("on_wait = 'notify me'", "Allowed: an argument list"),
        ("on_wait = ['a', 1]", "Allowed: an argument list"),
        ("on_wait = [' ']", "Allowed: an argument list"),
        (r"on_wait = ['a', " + '"\\u0000"]', "Allowed: an argument list"),
        ("limits = 3", "Allowed: tables as [limits.OPENAI_API_KEY]"),
        ("[limits]\nslots = 3", "Allowed: tables as [limits.OPENAI_API_KEY]"),
        ("[limits.K]\nslots = 0", "Allowed: tables as [limits.OPENAI_API_KEY]"),
        ("[limits.K]\nslot = 1", "Allowed: tables as [limits.OPENAI_API_KEY]"),
        ("[limits.K]\nper_day_usd = nan", "Allowed: tables as [limits.OPENAI_API_KEY]"),
        ("[prices.m]\ninput_per_million = 1", 'Allowed: tables as [prices."gpt-x"]'),
        ("[prices.m]\ninput_per_million = -1\noutput_per_million = 1", "Allowed: tables as [prices"),
        ("[llm]\nkey_name = 5", "Allowed: a table [llm]"),
        ("[llm]\nkey_command = 'pass show x'", "Allowed: a table [llm]"),
        ("[llm]\nkey_name = 5", "agentos.toml is wrong: expected `str`, got `int`"),
        ("[llm]\nkey_name = ''", "agentos.toml is wrong: expected `str` of length >= 1"),
        ("[llm]\nkey_name = '1K'", "key_name is the NAME of a variable"),
        ("[llm]\nkey_nam = 'K'", "agentos.toml is unknown"),
        ("[llm]\nkey_command = []", "agentos.toml is wrong: expected `array` of length >= 1"),
        ("[llm]\nkey_command = [' ', 'x']", "key_command begins with the name of a program"),
        ("[llm]\nkey_name = 'K'\nkey_command = ['k']", "key_name and key_command: give one of them"),
        ("[llm]\nbase_url = 'localhost:8000'", "base_url begins with https:// or http://"),
        ("[limits.K]\nslots = 0", "agentos.toml is wrong: expected `int` >= 1"),
        ("[prices.'m.1']\ninput_per_million = 1", "agentos.toml is missing"),
        ("[later]\nkey = 1", "unknown setting, 'later'"),
        ("keep = \n", "at line 1"),
        ("keep = 1\nkeep = 2\n", "at line 2"),
        ("gates = '" + "x" * 500 + "'", "…"),
    ],
)
def test_each_wrong_setting_has_its_own_message(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "agentos.toml").write_text(text)
    told = refusal(tmp_path)
    assert said in told
    assert "agentos.toml" in told
    assert len(told) < 600


@pytest.mark.parametrize("value", ["many", "1e400", "0x", "-3"])
def test_a_wrong_variable_is_told_by_its_name_and_text(tmp_path: Path, value: str) -> None:
    told = refusal(tmp_path, {"AGENTOS_KEEP": value})
    assert told.startswith(f"AGENTOS_KEEP is {value!r}\nAllowed:")


def test_what_a_wrong_table_holds_is_not_shown_since_it_may_be_a_key(tmp_path: Path) -> None:
    for text in ('{"key_name": "sk-0123456789"', '"sk-0123456789"', '{"key_name": ["sk-0123456789"]}'):
        told = refusal(tmp_path, {"AGENTOS_LLM": text})
        assert told.startswith("AGENTOS_LLM")
        assert "is wrong: expected" in told
        assert "sk-" not in told


def test_what_is_no_plain_file_of_the_repository_is_refused(tmp_path: Path) -> None:
    root, file = tmp_path / "root", tmp_path / "root" / "agentos.toml"
    root.mkdir()
    (tmp_path / "outside.toml").write_text("keep = 1")
    file.symlink_to(tmp_path / "outside.toml")
    assert "link to a file outside the repository" in refusal(root)
    file.unlink()
    file.symlink_to(root / "nothing")
    assert "is a link to nothing" in refusal(root)
    file.unlink()
    file.symlink_to(file)
    assert "cannot be read" in refusal(root)
    file.unlink()
    file.mkdir()
    assert "is not a file" in refusal(root)
    file.rmdir()
    file.write_bytes(b"keep = '\xff'")
    assert "cannot be read: 'utf-8'" in refusal(root)
    file.write_bytes(b"#" * (2 << 20))
    assert "more than settings ever need" in refusal(root)
    file.write_text("x = " + "[" * 100_000)
    assert "cannot be read" in refusal(root)
    file.unlink()
    (root / "real.toml").write_text("keep = 9")
    file.symlink_to("real.toml")  # a link that stays inside is the owner's own choice
    assert load_settings(root, {}).keep == 9


def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    (tmp_path / "agentos.toml").write_text("keep = 1")
    (tmp_path / "agentos.toml").chmod(0)
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    assert "cannot be read" in refusal(tmp_path)


# -- in force


def two_layers() -> Workflow:
    flow = Workflow("layers")
    for number in range(6):
        flow.add(f"t{number}", lambda: None, needs=[f"t{number - 1}"] if number else [])
    return flow


def test_runs_honour_the_settings_and_arguments_outweigh_them(tmp_git_repo: Path) -> None:
    (tmp_git_repo / "agentos.toml").write_text("keep = 2\n")
    kept: dict[str, Any] = {"two": {}, "four": {"keep": 4}}
    for name, given in kept.items():
        assert run(two_layers(), workflow_id=name, repo=tmp_git_repo, **given).status == "complete"
    client = Client(tmp_git_repo)
    assert [len(client.checkpoints(name)) for name in kept] == [2, 4]


def test_gates_durability_and_the_rest_reach_the_drive(tmp_git_repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_git_repo / "agentos.toml").write_text(EVERY_KIND)
    trust(tmp_git_repo)
    place, options = resolve_drive_options(tmp_git_repo)
    assert (place.durability, options.gates, options.lease_s, options.max_concurrency) == ("process", "reject", 20, 2)
    assert options.space_warning == 100_000_000
    assert options.hooks.on_wait == READ.on_wait
    assert (options.secrets, options.max_log, options.models) == (READ.secrets, 4096, READ.models)
    monkeypatch.setenv("AGENTOS_GATES", "wait")
    place, options = resolve_drive_options(tmp_git_repo, durability="full", max_concurrency=1)
    assert (place.durability, options.gates, options.max_concurrency) == ("full", "wait", 1)


def test_the_defaults_of_settings_are_those_of_a_drive(tmp_git_repo: Path) -> None:
    assert resolve_drive_options(tmp_git_repo)[1] == DriveOptions()


def test_max_concurrency_is_an_upper_limit(tmp_git_repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    seen: list[int] = []
    now = 0

    async def work() -> None:
        nonlocal now
        now += 1
        seen.append(now)
        await asyncio.sleep(0)
        now -= 1

    flow = Workflow("wide", max_concurrency=4)
    for number in range(8):
        flow.add(f"t{number}", work)
    for limit, most in ((2, 2), (100, 4)):
        monkeypatch.setenv("AGENTOS_MAX_CONCURRENCY", str(limit))
        seen.clear()
        assert run(flow, repo=tmp_git_repo).status == "complete"
        assert max(seen) <= most


def test_a_broken_setting_stops_a_run_before_anything_is_written(tmp_git_repo: Path) -> None:
    (tmp_git_repo / "agentos.toml").write_text("keeep = 2\n")
    with pytest.raises(WorkflowConfigurationError, match="keeep"):
        run(two_layers(), repo=tmp_git_repo)
    assert Client(tmp_git_repo).list_runs() == []
    assert git("status", "--short", cwd=tmp_git_repo) == "?? agentos.toml"
