"""`agentos schema`: what editors and scripts are told must be what the program does."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from agentos.cli.json_shapes import commands, output_type, prints_json
from agentos.dag.define.schema import file_schema, setting_schema
from agentos.dag.define.settings import DEFAULTS, SETTINGS, WORK, known_settings
from agentos.dag.define.yaml_file import KEYS, read_workflow
from agentos.dag.language.yaml_document import read_document, value_of
from agentos.dag.plan.plan import compile_plan
from agentos.exceptions import WorkflowDefinitionError
from tests.cli.conftest import Agentos
from tests.unit.dag.test_workflow_file import RELEASE

TEMPLATE = Path(__file__).parents[2] / "src" / "agentos" / "cli" / "templates" / "hello.yaml"
GOOD = [
    RELEASE,
    TEMPLATE.read_text(),
    "tasks: {a: {run: ls}}",
    "params: [p]\ntasks: {a: {approval: {question: Go?, by: agent, timeout_s: 3, on_timeout: approve}}}",
    "tasks: {a: {run: [ls, 1, true]}, b: {repeat: {tasks: [a], until: 'true', max: 2}}}",
    "tasks: {a: {llm: gpt, prompt: hi, temperature: 0.5, retries: {retries: 1, jitter: 0.5}}}",
    "tasks: {a: {run: ls, concurrency: {group: g, slots: 2}}}",
    "tasks: {a: {for_each: {items: [1], as: x, key: x, max_failures: 1}, run: ls, effects: [files, external]}}",
    "params: {p: {type: integer, default: 1, help: x, choices: [1, 2]}, q: {type: web, x: 1}}\ntasks: {a: {run: ls}}",
    "env: {A: 1, B: true, C: }\ndefaults: {env: {D: x}, retries: 2, output: json}\ntasks: {a: {run: ls, if: false}}",
]
BAD = [
    "name: x",
    "tasks: []",
    "tasks: {}",
    "tasks: {a: ls}",
    "tasks: {a: {}}",
    "tasks: {a: {rnu: ls}}",
    "tasks: {a: {run: ls, python: 'm:f'}}",
    "tasks: {a: {run: ls, prompt: hi}}",
    "tasks: {a: {run: ls, timeout_s: '3'}}",
    "tasks: {a: {run: ls, timeout_s: 0}}",
    "tasks: {a: {run: ls, retries: -1}}",
    "tasks: {a: {run: ls, retries: {retry: 1}}}",
    "tasks: {a: {run: ls, effects: all}}",
    "tasks: {a: {run: ls, needs: {b: 1}}}",
    "tasks: {a: {run: ls, for_each: 3}}",
    "tasks: {a: {run: ls, isolation: vm}}",
    "tasks: {a: {python: no_colon}}",
    "tasks: {a: {run: 3}}",
    "tasks: {a: {run: []}}",
    "tasks: {a: {repeat: {tasks: [b], until: x}}}",
    "jobs: {a: {run: ls}}",
    "schedule: fast\ntasks: {a: {run: ls}}",
    "max_concurrency: 0\ntasks: {a: {run: ls}}",
    "defaults: {needs: x}\ntasks: {a: {run: ls}}",
    "params: 3\ntasks: {a: {run: ls}}",
    "params: {p: {type: int, default: 1}}\ntasks: {a: {run: ls}}",
    "params: {p: {default: 1, choices: []}}\ntasks: {a: {run: ls}}",
    "- a",
]


def data(text: str) -> Any:
    document = read_document(text.encode())
    assert document.root is not None
    return value_of(document.root)


def test_it_is_a_schema(agentos: Agentos, tmp_path: Path) -> None:
    done = agentos("schema", cwd=tmp_path)
    assert done.code == 0
    printed = json.loads(done.out)
    assert printed == json.loads(json.dumps(file_schema()))
    jsonschema.Draft202012Validator.check_schema(printed)


def test_the_package_brings_it_along() -> None:
    """At a path that a header of a workflow file can name: `# yaml-language-server: $schema=…`."""
    shipped = resources.files("agentos") / "schemas" / "workflow-1.json"
    assert json.loads(shipped.read_text()) == file_schema(), "run `make docs`"


@pytest.mark.parametrize("text", GOOD)
def test_it_takes_what_can_be_planned(text: str) -> None:
    jsonschema.validate(data(text), file_schema())
    flow = read_workflow(text.encode(), file="x.yaml", name="x")
    given = dict.fromkeys(flow.params or ()) if isinstance(flow.params, list) else {}
    compile_plan(flow, given)


@pytest.mark.parametrize("text", BAD)
def test_it_refuses_what_cannot(text: str) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data(text), file_schema())
    with pytest.raises(WorkflowDefinitionError):
        compile_plan(read_workflow(text.encode(), file="x.yaml", name="x"))


def test_it_knows_every_key_and_every_setting() -> None:
    schema = file_schema()
    assert set(schema["properties"]) == set(KEYS)
    assert set(schema["properties"]["defaults"]["properties"]) == set(DEFAULTS)
    for key, (kind, setting) in WORK.items():
        known = set(known_settings(kind)) - {setting} | {key}
        assert set(schema["$defs"][f"task-{key}"]["properties"]) == known
    assert all(setting_schema(name)["description"] for name in SETTINGS)


def test_editors_read_the_same_data() -> None:
    """An editor's YAML reader (1.2, here approximated by PyYAML) sees the template as we do."""
    assert yaml.safe_load(TEMPLATE.read_text()) == data(TEMPLATE.read_text())


@pytest.mark.parametrize("name", [name for name, command in commands() if prints_json(command) and output_type(name)])
def test_of_a_command(agentos: Agentos, tmp_path: Path, name: str) -> None:
    done = agentos("schema", *name.split(), cwd=tmp_path)
    assert done.code == 0
    printed = json.loads(done.out)
    jsonschema.Draft202012Validator.check_schema(printed)
    assert printed["title"] == f"agentos {name} --json"


@pytest.mark.parametrize("name", ["none", "completion", "list nothing"])
def test_of_what_prints_none(agentos: Agentos, tmp_path: Path, name: str) -> None:
    done = agentos("schema", *name.split(), cwd=tmp_path)
    assert (done.code, done.out) == (2, "")
    assert "These do: " in done.err
