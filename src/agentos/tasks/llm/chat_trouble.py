"""What went wrong with a call, from statuses, headers and exceptions of the connection."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec

from agentos.exceptions import ModelCallError, ModelTrouble

MAX_SAID = 500
MAX_RETRY_AFTER_S = 7 * 86_400.0


def status_error(status: int, headers: Mapping[str, str], body: bytes, base_url: str) -> ModelCallError:
    """For an answer with any status but 200."""
    said, code = _parse_error(body)
    shown = f": {said}" if said else ""
    if 300 <= status < 400:
        target = headers.get("location", "nowhere")
        return ModelCallError(
            f"{base_url} redirects to {target[:200]!r}, which is not followed: a key is never sent elsewhere",
            kind="bad_input",
            status=status,
            retryable=False,
            next_step="Set `base_url` to where the server really is.",
        )
    kind: ModelTrouble = "bad_input"
    if status in (401, 402, 403) or code == "insufficient_quota":  # out of credit comes as 429 too; no waiting helps
        kind = "auth"
    elif status == 429:
        kind = "rate"
    elif status >= 500 or status in (408, 409, 425):
        kind = "server"
    return ModelCallError(
        f"{base_url} answered with {status}{shown}",
        kind=kind,
        status=status,
        retry_after_s=retry_after_s(headers.get("retry-after", ""), datetime.now(UTC)),
        retryable=kind in ("rate", "server"),
        next_step=_NEXT.get(kind, ""),
    )


def refuses_usage(error: ModelCallError) -> bool:
    """Whether the server does not take a call because it asks for what it uses."""
    return error.status in (400, 422) and ("stream_options" in error.message or "include_usage" in error.message)


def unreachable_error(base_url: str, error: Exception) -> ModelCallError:
    """For a connection that never came about."""
    text = str(error) or type(error).__name__
    certificate = "CERTIFICATE_VERIFY_FAILED" in text
    cause: BaseException | None = error
    while cause is not None and not certificate:
        certificate = isinstance(cause, ssl.SSLCertVerificationError)
        cause = cause.__cause__ or cause.__context__
    scheme = base_url.partition("://")[0]
    written_wrong = scheme not in ("http", "https") or type(error).__name__ in ("UnsupportedProtocol", "InvalidURL")
    next_step = "See whether `base_url` is right, whether the server runs, and which proxy the environment names."
    if certificate:
        next_step = "Its certificate is not trusted: SSL_CERT_FILE names those of an authority of your own."
    elif written_wrong:
        next_step = "`base_url` begins with https:// or http://, as https://api.openai.com/v1."
    return ModelCallError(
        f"{base_url} cannot be reached: {text}",
        kind="bad_input" if written_wrong else "unreachable",
        retryable=not (certificate or written_wrong),
        next_step=next_step,
    )


def cut_off_error(why: str) -> ModelCallError:
    """For a connection that ended before the answer did."""
    return ModelCallError(f"the answer broke off: {why}", kind="cut_off")


def retry_after_s(value: str, now: datetime) -> float | None:
    """`Retry-After`, in seconds or as a date; None where it is neither. Never negative, and bounded."""
    value = value.strip()
    try:
        wait_s = float(value)
    except ValueError:
        try:
            at = parsedate_to_datetime(value)
        except (ValueError, TypeError, OverflowError):
            return None
        wait_s = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() - now.timestamp()
    if wait_s != wait_s:  # NaN
        return None
    return min(max(wait_s, 0.0), MAX_RETRY_AFTER_S)


_NEXT: Mapping[ModelTrouble, str] = {
    "auth": "Check the key, and whether the account may use this model and has credit left.",
    "bad_input": "Check `base_url`, the model's name and the task's settings.",
}


def _parse_error(body: bytes) -> tuple[str, str]:
    """What the server says went wrong, and its code for it."""
    try:
        error: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        text = body.decode(errors="replace").strip()
        return text[:MAX_SAID], ""
    if isinstance(error, dict) and "error" in error:
        error = error["error"]
    if isinstance(error, dict):
        return str(error.get("message") or error.get("detail") or error)[:MAX_SAID], str(error.get("code", ""))
    return str(error)[:MAX_SAID], ""
