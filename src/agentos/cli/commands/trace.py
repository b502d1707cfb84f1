"""`agentos trace`"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

import click
import msgspec

from agentos.cli.options import json_option, repo_option, run_or_newest
from agentos.cli.output import print_json, say
from agentos.client.places import find_run
from agentos.client.views import trace
from agentos.exceptions import RunRefusedError, TryAgainError
from agentos.render.otlp import Request, encode_json, encode_protobuf, otlp_requests
from agentos.render.text import count, printable

PATIENCE_S = 10.0
_TRACES = "/v1/traces"
_OTLP = "OTEL_EXPORTER_OTLP"


class Traced(msgspec.Struct, frozen=True, kw_only=True):
    """Spans that were written or sent, as `trace --json` prints it."""

    workflow_id: str
    """The run's whole id."""
    otlp: str
    """The file that was written, or the address that took them."""
    spans: int
    """How many."""
    traces: list[str]
    """The ids of their traces: one for each drive, and one for the run."""


OUTPUT = Traced


@click.command(
    "trace",
    help="""\b
What a run did, as spans for OpenTelemetry.

\b
Examples:
  agentos trace nightly --otlp http://localhost:4318
  agentos trace --otlp spans.jsonl                       of the newest run, into a file
  agentos trace nightly --otlp - | jq .resourceSpans

A URL is that of a collector (OTLP over HTTP; /v1/traces is added where it has no path), with the headers that
OTEL_EXPORTER_OTLP_HEADERS names. A file holds a request a line, as collectors read them. The ids are made of what the
journal says: whoever sends a run again, from wherever, sends the same spans. What is under way comes with the next
call. Prompts and outputs are not in them. docs/telemetry.md has the spans, and how to have them sent as a run goes.

\b
Exit codes:
  0   written, or sent
  2   no such run, or the collector refuses these spans
  75  the collector cannot be reached, or is too busy
""",
)
@run_or_newest
@click.option("--otlp", "target", metavar="FILE|URL", required=True, help="Where they go; - for stdout.")
@json_option
@repo_option
def command(run: str | None, target: str, as_json: bool, repo: Path | None) -> None:
    if target == "-" and as_json:
        raise click.UsageError("--json says where they went, and --otlp - shows them.")
    found = find_run(run, repo)
    spans = trace(found)
    requests = otlp_requests(spans, os.environ.get("OTEL_SERVICE_NAME") or "agentos")
    if target == "-":
        sys.stdout.flush()
        sys.stdout.buffer.writelines(encode_json(one) + b"\n" for one in requests)
        sys.stdout.buffer.flush()
    elif target.lower().startswith(("http://", "https://")):
        target = _send(target, requests)
    else:
        target = _write(Path(target), requests)
    traces = sorted({span.trace_id for span in spans})
    if as_json:
        workflow_id = found.record.workflow_id
        print_json(Traced(workflow_id=workflow_id, otlp=target, spans=len(spans), traces=traces))
    else:
        where = "" if target == "-" else f": {printable(target)}"
        say(f"{count(len(spans), 'span')} in {count(len(traces), 'trace')}{where}")


def _write(path: Path, requests: Iterable[Request]) -> str:
    from agentos.cli.output_file import write_file

    if path.exists() and not path.is_file():
        raise RunRefusedError(f"{printable(str(path))} is no file", next_step="Name a file, or - for stdout.")
    write_file(path, (encode_json(one) + b"\n" for one in requests), force=True)
    return str(path.absolute())


def _send(url: str, requests: Iterable[Request]) -> str:
    """Send them, one request after the other; to which address that was, without what may be a password in it."""
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise click.BadParameter(f"it is no URL: {error}", param_hint="--otlp") from None
    user, at, host = parts.netloc.rpartition("@")
    to = parts._replace(netloc=host, path=parts.path if parts.path.strip("/") else _TRACES, fragment="")
    shown = to._replace(query="").geturl()
    headers = _headers(user if at else None)
    for one in requests:
        _post(to.geturl(), shown, encode_protobuf(one), headers)
    return shown


def _headers(user: str | None) -> dict[str, str]:
    """Those that the environment names, and the user and password of a URL."""
    from base64 import b64encode
    from urllib.parse import unquote

    variable = next((one for one in (f"{_OTLP}_TRACES_HEADERS", f"{_OTLP}_HEADERS") if os.environ.get(one)), "")
    pairs = (pair.partition("=") for pair in os.environ.get(variable, "").split(",") if "=" in pair)
    headers = {"Content-Type": "application/x-protobuf"}
    if user is not None:
        headers["Authorization"] = f"Basic {b64encode(unquote(user).encode()).decode()}"
    headers |= {name.strip(): unquote(value.strip()) for name, _, value in pairs}
    for name, value in headers.items():
        if not (name + value).isascii() or not (name + value).isprintable():
            raise RunRefusedError(
                f"the header {printable(name)!r} of {variable} has characters that no header may have",
                next_step=f"Write its value in {variable} as it is to be sent, or with %XX for such as , and =.",
            )
    return headers


def _post(address: str, shown: str, body: bytes, headers: dict[str, str]) -> None:
    import urllib.request
    from http.client import HTTPException
    from urllib.error import HTTPError

    class Stays(urllib.request.HTTPRedirectHandler):
        """Follows no redirection: it would ask for a page instead, and hand our headers to whoever is named."""

        def redirect_request(self, *_: object) -> None:
            return None

    shown, again = printable(shown), "Send them again later: they are the same then."
    try:
        request = urllib.request.Request(address, body, headers)
        with urllib.request.build_opener(Stays).open(request, timeout=PATIENCE_S) as answer:
            answer.read(1 << 20)
    except HTTPError as error:
        text = f"{shown} answered with {error.code} {printable(error.reason)}"
        if error.code in (408, 429) or error.code >= 500:
            raise TryAgainError(text, next_step=again) from None
        raise RunRefusedError(text, next_step="Look at the address, and at OTEL_EXPORTER_OTLP_HEADERS.") from None
    except ValueError as error:
        raise RunRefusedError(f"{shown} is no address: {error}", next_step="Name it as http://HOST:4318.") from None
    except (OSError, HTTPException) as error:
        reason = printable(str(getattr(error, "reason", error)))
        raise TryAgainError(f"{shown} cannot be reached: {reason}", next_step=again) from None
