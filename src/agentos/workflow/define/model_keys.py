"""What the settings say of models, told before anything begins: a key that is not set, settings that nobody trusts."""

from __future__ import annotations

import os
from collections.abc import Mapping

from agentos.dag.plan.findings import format_names
from agentos.dag.plan.plan import Plan
from agentos.exceptions import RunRefusedError, UntrustedSettingsError
from agentos.tasks.llm.model_settings import LlmDefaults, ModelSettings


def refuse_untrusted_models(plan: Plan, models: ModelSettings) -> None:
    """UntrustedSettingsError where tasks ask a model as settings say that came with the repository unaccepted."""
    if not models.untrusted:
        return
    from agentos.tasks.llm.endpoints import needs_defaults  # few runs get here

    calls = [task.definition.llm for task in plan.tasks.values() if task.definition.llm is not None]
    if any(needs_defaults(work, models.llm) for work in calls):
        raise UntrustedSettingsError(models.untrusted)


def refuse_keyless(plan: Plan, defaults: LlmDefaults, environ: Mapping[str, str] = os.environ) -> None:
    """RunRefusedError where tasks need the key of `[llm] key_name` and no such variable is set."""
    if why := keyless(plan, defaults, environ):
        raise RunRefusedError(
            why, next_step=f"Nothing was run. Set it, `export {defaults.key_name}=…`, or correct the setting."
        )


def keyless(plan: Plan, defaults: LlmDefaults, environ: Mapping[str, str] = os.environ) -> str:
    """What is wrong with the variable that `[llm] key_name` names, and for which tasks; empty where nothing is."""
    name = defaults.key_name
    if not name or name in plan.settings.env or environ.get(name, "").strip():
        return ""
    from agentos.tasks.llm.endpoints import has_default_key  # few runs get here

    needing = [
        task.id
        for task in plan.tasks.values()
        if (work := task.definition.llm) is not None
        and name not in task.definition.env
        and has_default_key(work, defaults)
    ]
    if not needing:
        return ""
    state = "is empty" if name in environ else "is not set"
    return (
        f"`[llm] key_name` in the settings names the variable {name}, which {state}; needed by {format_names(needing)}"
    )
