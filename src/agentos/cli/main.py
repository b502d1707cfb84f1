"""The program: a table of commands, each loaded only when it is asked for."""

from __future__ import annotations

import io
import os
import sys
from importlib import import_module

import click
from click.shell_completion import CompletionItem

from agentos import __version__
from agentos.cli.boundary import print_error, run_and_exit
from agentos.cli.output import say

SECTIONS: dict[str, dict[str, str]] = {
    "Write": {
        "init": "Write a small workflow to start from.",
        "check": "Tell every problem of workflow files, then the plan. Runs no task; imports Python files.",
        "prove": "Run tasks again in a scratch worktree, and tell which can be repeated.",
        "graph": "Draw a workflow or a run.",
        "schema": "Print the JSON Schema of workflow files, or of what a command prints.",
    },
    "Run": {
        "run": "Run a workflow; every step is durable before the next begins.",
        "resume": "Go on with a run: keep what finished, repeat what was interrupted.",
        "fork": "Begin a new run from a checkpoint of another one.",
        "watch": "Follow a run that another process drives.",
        "submit": "Write a run down for a worker to take.",
        "worker": "Drive runs that were submitted or interrupted, many at a time, until told to stop.",
        "schedule": "Have workflows run by themselves, as their `cron` says.",
        "cluster": "A Dask cluster on this machine, to try `runner: dask` with.",
        "issue": "Make a reviewed, filed issue of a brief.",
        "mcp": "Let a coding agent start runs and look at them, over the Model Context Protocol.",
        "demo": "Watch an agent being killed in mid-edit and resumed, in a throw-away repository.",
    },
    "Look": {
        "list": "Runs of this worktree, newest first.",
        "ui": "Open a page: see runs, answer them, go back in time.",
        "inbox": "What waits for your answer, in every worktree known, newest first.",
        "show": "A run as it stands: tasks, gates, checkpoints, and what to type next.",
        "logs": "What tasks printed, also while they print it.",
        "events": "What happened in a run, event by event.",
        "trace": "What a run did, as spans for OpenTelemetry.",
        "why": "Why a task ran, was kept, was skipped, waits, failed, or has not run yet.",
        "checkpoints": "Checkpoints that a run keeps, oldest first.",
        "diff": "What differs between two checkpoints or runs, or what a task did to files.",
        "help": "The commands of every day, all of them, or one of them.",
    },
    "Files": {
        "restore": "Put the files of the worktree back as a checkpoint has them.",
        "undo": "Bring back the files that the last restore replaced.",
        "purge": "Take a file, such as a secret, out of every snapshot of this repository.",
    },
    "Answer": {
        "approve": "Say yes at a gate, and go on with the run.",
        "reject": "Say no at a gate: what it guards does not run.",
        "pause": "Let running tasks finish, start no others, and stop.",
        "abort": "End a run now; running tasks are cancelled. Final.",
        "send": "Give a run any command.",
    },
    "Keep": {
        "completion": "Print a script that completes commands and ids in your shell.",
        "prune": "Delete older checkpoints of a run, or of all runs here.",
        "delete": "Delete a run with everything it has, old runs, or all that is kept of this worktree.",
        "export": "Write a run into one file, to be imported elsewhere.",
        "import": "Take in a run from a file that `export` wrote.",
        "db": "Where state lives, how much of it there is, and copies of it.",
        "trust": "Accept what this repository's settings connect to and run.",
        "doctor": "Check this place, its settings and its runs, and say how to mend what is wrong.",
    },
}
"""Every command by section, with its summary: what `agentos --help` shows without loading any of them.

A test holds each summary equal to the first line of the command's own help.
"""

EVERY_DAY = ("init", "run", "resume", "list", "show", "why", "logs", "inbox", "approve", "doctor")
"""What `agentos` alone shows."""
ALIASES = {"ls": "list", "ps": "list", "status": "show", "rm": "delete"}
"""Words that people type, too."""

HELP = """Durable workflows for agents: kill a run anywhere, resume it, and nothing finished is done twice.

\b
Examples:
  agentos init                      write a small workflow to start from
  agentos run hello                 run workflows/hello.yaml (or .py)
  agentos resume                    go on with the newest unfinished run here
  agentos inbox                     what waits for your answer, anywhere
"""


class Commands(click.Group):
    """Finds commands by name, and imports `agentos.cli.commands.NAME` only for the one that is used."""

    def list_commands(self, context: click.Context) -> list[str]:
        return [name for section in SECTIONS.values() for name in section]

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        name = ALIASES.get(name, name)
        if name not in self.list_commands(context):
            return None
        found: click.Command = import_module(module_of(name)).command
        return found

    def shell_complete(self, context: click.Context, incomplete: str) -> list[CompletionItem]:
        """As click has it, from the table: completing `agentos` must not load every command for its help."""
        known = {name: summary for section in SECTIONS.values() for name, summary in section.items()}
        items = [CompletionItem(name, help=known[name]) for name in known if name.startswith(incomplete)]
        return [*items, *click.Command.shell_complete(self, context, incomplete)]

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if (
            not context.resilient_parsing
            and not name.startswith("-")
            and ALIASES.get(name, name) not in (known := self.list_commands(context))
        ):
            import difflib  # for a command that is misspelt

            near = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean `agentos {near[0]}`?" if near else " `agentos --help` lists the commands."
            context.fail(f"There is no command {name!r}.{hint}")
        return super().resolve_command(context, args)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        for section, summaries in SECTIONS.items():
            if summaries:
                with formatter.section(section):
                    formatter.write_dl(list(summaries.items()))


_WORDS = {"import", "list"}


def module_of(name: str) -> str:
    """The module of a command. `import` and the like are words of Python: their files end in an underscore."""
    return f"agentos.cli.commands.{name}_" if name in _WORDS else f"agentos.cli.commands.{name}"


@click.group(
    cls=Commands,
    help=HELP,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="agentos", message="%(prog)s %(version)s")
@click.pass_context
def program(context: click.Context) -> None:
    """The group itself shows the front page: each command settles its own place."""
    if context.invoked_subcommand is None:
        click.echo(front_page())


def front_page() -> str:
    """What a newcomer needs, on one screen."""
    known = {name: summary for section in SECTIONS.values() for name, summary in section.items()}
    width = max(map(len, EVERY_DAY))
    rows = "\n".join(f"  agentos {name:<{width}}  {known[name]}" for name in EVERY_DAY)
    more = "agentos help --all   every command\nagentos help NAME    one of them, with examples"
    return f"{HELP.splitlines()[0]}\n\n{rows}\n\n{more}"


def main() -> None:
    """Run the program and exit: 2 for wrong usage, else as `agentos.cli.boundary` says."""
    _open_streams()
    run_and_exit(_run)


def _open_streams() -> None:
    """Stand in for streams that the caller closed (`>&-`), and never fail over a character that stdout has none for.

    Otherwise the next file that is opened becomes stdout, and whatever is printed goes into it.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode)  # noqa: SIM115 - takes the lowest number free: the one that was closed
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _run() -> int:
    stdout = sys.stdout
    try:
        code = program.main(prog_name="agentos", standalone_mode=False)
    except SystemExit:
        if sys.stdout is not stdout:  # click puts another one there when the pipe is gone, and leaves with 1
            raise BrokenPipeError from None
        raise
    except click.exceptions.Abort:  # Ctrl-C or the end of input at a prompt
        raise KeyboardInterrupt from None
    except click.ClickException as error:
        usage = error.ctx if isinstance(error, click.UsageError) else None
        if usage is not None:
            say(f"{usage.get_usage()}\nTry '{usage.command_path} --help' for help.\n")
        print_error(f"Error: {error.format_message()}")
        return error.exit_code
    return code if isinstance(code, int) else 0
