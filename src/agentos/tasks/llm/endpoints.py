"""Which server an llm task asks, with whose key, and under which name its calls are counted.

A key comes out of a variable, or is printed by a command. It is never stored.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from agentos.dag.define.model_calls import LlmWork
from agentos.exceptions import ModelCallError
from agentos.secrets import EnvironmentSecrets, SecretSource
from agentos.tasks.llm.chat import Endpoint
from agentos.tasks.llm.model_settings import LlmDefaults, ModelSettings
from agentos.tasks.process.ancestors import start_own
from agentos.tasks.process.supervision import describe_status

OPENAI = "https://api.openai.com/v1"
_PROVIDERS = {
    "api.openai.com": "openai",
    "openai.azure.com": "azure.ai.openai",
    "api.anthropic.com": "anthropic",
    "generativelanguage.googleapis.com": "gcp.gemini",
    "aiplatform.googleapis.com": "gcp.vertex_ai",
    "amazonaws.com": "aws.bedrock",
    "api.mistral.ai": "mistral_ai",
    "api.deepseek.com": "deepseek",
    "api.groq.com": "groq",
    "api.perplexity.ai": "perplexity",
    "api.x.ai": "x_ai",
}
"""By host, or its domain: what OpenTelemetry calls them."""
OPENAI_URL_VARIABLE = "OPENAI_BASE_URL"
OPENAI_KEY_VARIABLE = "OPENAI_API_KEY"
COMMAND_S = 60.0
MAX_KEY_BYTES = 16_384


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
    """The account for a call in an attempt with the variables `environ`.

    ModelCallError of kind `auth` where there is no key and there should be one, or the settings are not trusted.
    """
    defaults = models.llm
    if models.untrusted and needs_defaults(work, defaults):
        raise ModelCallError(models.untrusted, kind="auth", retryable=False)
    base_url = work.base_url or defaults.base_url or environ.get(OPENAI_URL_VARIABLE, "").strip() or OPENAI
    source = _key_source(work, defaults, base_url)
    if source.command:
        key = await key_from_command(source.command, cwd, environ)
    elif source.name:
        key = key_from_variable(source.name, EnvironmentSecrets(environ), optional=source.optional)
    else:
        key = ""
    try:
        host = urlsplit(base_url).netloc.rpartition("@")[2] or base_url
    except ValueError:
        host = base_url
    return Account(
        endpoint=Endpoint(base_url=base_url, key=key),
        credential=source.name if key and source.name else host,
        account=blake2b(key.encode(), digest_size=6, person=b"agentos-limits").hexdigest() if key else "",
    )


def provider_of(base_url: str) -> str:
    """Whose server it is, as OpenTelemetry's `gen_ai.provider.name` has it; of others, the host."""
    try:
        host = urlsplit(base_url).hostname or ""
    except ValueError:
        return ""
    return next((name for known, name in _PROVIDERS.items() if host == known or host.endswith(f".{known}")), host)


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


def key_from_variable(name: str, secrets: SecretSource, *, optional: bool = False) -> str:
    """The value of the variable. ModelCallError where there is none, unless it is optional."""
    found = secrets.get(name)
    value = (found or "").strip()
    if not value and optional:
        return ""
    if not value:
        state = "is not set" if found is None else "is empty"
        raise _no_key(f"the variable {name}, which should hold the key, {state}", f"Set it: `export {name}=…`.")
    return _usable(value, f"the variable {name}")


async def key_from_command(argv: Sequence[str], cwd: Path, environ: Mapping[str, str]) -> str:
    """What the command prints. It gets no shell, no input, a minute, and is ended with all that it started."""
    shown = repr(argv[0])
    try:
        child = await start_own(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,  # it may show the key, which nobody could mask yet
            cwd=cwd,
            env=dict(environ),
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise _no_key(f"the command {shown}, which should print the key, could not be started: {error}") from None
    try:
        async with asyncio.timeout(COMMAND_S):
            out, _ = await child.communicate()
    except BaseException as error:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        await child.wait()
        if not isinstance(error, TimeoutError):
            raise
        raise _no_key(f"the command {shown}, which should print the key, took longer than {COMMAND_S:g} s") from None
    if child.returncode != 0:
        raise _no_key(
            f"the command {shown}, which should print the key, {describe_status(child.returncode)}",
            "What it says is not shown here, since it may hold the key: run `key_command` by hand, in the root of the "
            "repository and without input, to see it.",
        )
    key = out[: MAX_KEY_BYTES + 1].decode(errors="replace").strip()
    if not key:
        raise _no_key(f"the command {shown}, which should print the key, printed nothing")
    return _usable(key, f"what the command {shown} printed")


def _usable(key: str, whose: str) -> str:
    """A key goes into a header: one line of printable ASCII."""
    if len(key) > MAX_KEY_BYTES or not key.isascii() or not key.isprintable():
        raise _no_key(f"{whose} is no key: it is not one line of ASCII characters")
    return key


def _no_key(why: str, next_step: str = "") -> ModelCallError:
    return ModelCallError(why, kind="auth", retryable=False, next_step=next_step)
