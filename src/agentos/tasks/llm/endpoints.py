"""Which server an llm task asks, with whose key, and under which name its calls are counted."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from agentos.dag.define.model_calls import LlmWork
from agentos.exceptions import ModelCallError
from agentos.tasks.llm.chat import Endpoint
from agentos.tasks.llm.credentials import key_from_command, key_from_variable
from agentos.tasks.llm.model_settings import LlmDefaults, ModelSettings

OPENAI = "https://api.openai.com/v1"
OPENAI_URL_VARIABLE = "OPENAI_BASE_URL"
OPENAI_KEY_VARIABLE = "OPENAI_API_KEY"


class Account(NamedTuple):
    """Where calls go and who pays."""

    endpoint: Endpoint
    credential: str
    """The variable of the key, else the server's host: what `[limits]` of the settings names."""
    account: str
    """Tells two keys apart that have the same name in two places, and cannot be turned back into one."""


class _KeySource(NamedTuple):
    name: str = ""
    command: tuple[str, ...] = ()
    optional: bool = False


async def account_for(work: LlmWork, models: ModelSettings, environ: Mapping[str, str], cwd: Path) -> Account:
    """ModelCallError of kind `auth` where there is no key and there should be one, or the settings are not trusted."""
    defaults = models.llm
    if models.untrusted and needs_defaults(work, defaults):
        raise ModelCallError(models.untrusted, kind="auth", retryable=False)
    base_url = work.base_url or defaults.base_url or environ.get(OPENAI_URL_VARIABLE, "").strip() or OPENAI
    source = _key_source(work, defaults, base_url)
    if source.command:
        key = await key_from_command(source.command, cwd, environ)
    elif source.name and not (source.optional and not environ.get(source.name, "").strip()):
        key = key_from_variable(source.name, environ)
    else:
        key = ""
    return Account(
        endpoint=Endpoint(base_url=base_url, key=key),
        credential=source.name if key and source.name else _host(base_url),
        account=blake2b(key.encode(), digest_size=6, person=b"agentos-limits").hexdigest() if key else "",
    )


def has_default_key(work: LlmWork, defaults: LlmDefaults) -> bool:
    """Whether the key of a call is the one of the settings, where those name one."""
    own = bool(work.key_name or work.key_command)
    return not own and (not work.base_url or work.base_url == defaults.base_url)


def needs_defaults(work: LlmWork, defaults: LlmDefaults) -> bool:
    """Whether a call goes where the settings say, or with the key that they name."""
    has_key = bool(defaults.key_name or defaults.key_command)
    return (bool(defaults.base_url) and not work.base_url) or (has_key and has_default_key(work, defaults))


def _key_source(work: LlmWork, defaults: LlmDefaults, base_url: str) -> _KeySource:
    if work.key_name or work.key_command:
        return _KeySource(work.key_name, work.key_command)
    if not has_default_key(work, defaults):
        return _KeySource()  # a key is meant for one place, and nobody said that it is for this one
    if defaults.key_name or defaults.key_command:
        return _KeySource(defaults.key_name, defaults.key_command)
    if defaults.base_url:
        return _KeySource()
    # Under OPENAI_BASE_URL it may be a server that needs none.
    return _KeySource(OPENAI_KEY_VARIABLE, optional=base_url != OPENAI)


def _host(base_url: str) -> str:
    try:
        return urlsplit(base_url).netloc.rpartition("@")[2] or base_url
    except ValueError:
        return base_url
