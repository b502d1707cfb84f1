"""Signed answers at the command line: the options, and the signature that they ask for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentos.cli.output import say
from agentos.render.text import printable

if TYPE_CHECKING:
    from agentos.client.places import FoundRun
    from agentos.ids import GateId

_OPTIONS = (
    click.option("--sign", is_flag=True, help="Sign the answer with an SSH key, for a gate with `by: signed`."),
    click.option(
        "--key",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="The key for --sign (default: git's, else the first of ssh-agent, else one of ~/.ssh).",
    ),
    click.option(
        "--signature",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="A signature that was made elsewhere, of what --print-to-sign prints.",
    ),
    click.option("--print-to-sign", is_flag=True, help="Print what this answer's signature is over; answer nothing."),
)


def signing_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--sign`, `--key`, `--signature` and `--print-to-sign`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def read_signature(
    run: FoundRun,
    gate_id: GateId,
    *,
    sign: bool,
    key: Path | None,
    signature: Path | None,
    print_to_sign: bool,
    **said: Any,
) -> str | None:
    """The signature of the answer, empty where none is wanted; None where its text was printed, and nothing is said."""
    if sum((sign or key is not None, signature is not None, print_to_sign)) > 1:
        raise click.UsageError(
            "--sign makes a signature, --signature has one, --print-to-sign prints for one: give one"
        )
    from agentos.client.answers import sign_answer, text_to_sign

    if print_to_sign:
        click.echo(text_to_sign(run, gate_id, **said), nl=False)
        return None
    if signature is not None:
        return signature.read_text(errors="replace")
    if not sign and key is None:
        return ""
    return sign_answer(run, gate_id, key=key, tell=lambda why: say(f"Signing with {printable(why)}."), **said)
