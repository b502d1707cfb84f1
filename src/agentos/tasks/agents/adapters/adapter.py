"""What AgentOS must know of an agent's program: how it is called, what it says, how it ended.

Each agent is a module that gives a `TRAITS`, a `call` and a `reader`. They read text and write arguments and touch
nothing else, so that a recorded stream tests them as well as the program does.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, Protocol

import msgspec

from agentos.machine.events import Usage
from agentos.tasks.agents.adapters.usage_limits import speaks_of_limit

AgentOutcome = Literal[
    "ok",
    "agent_error",
    "api_auth",
    "api_rate",
    "api_5xx",
    "bad_input",
    "budget",
    "turn_limit",
    "timeout",
    "killed",
    "no_result",
]
"""How an agent's attempt ended, whatever the agent."""

Permissions = Literal["read", "edit", "full"]

MAX_SHOWN = 200
"""Characters of a tool's argument in a line for people."""


class TranscriptLocation(msgspec.Struct, frozen=True):
    """Where an agent keeps the transcript of a session."""

    variable: str
    """Names its folder, where it is set."""
    folder: str
    """Else this one of the user's home."""
    pattern: str
    """Of the file in it: `{id}` of the session, `{short}` for the first eight signs of that."""


class KeptFolder(msgspec.Struct, frozen=True):
    """A folder of the user's home in which an agent keeps sessions and credentials."""

    variable: str
    """Names what it lies in, where it is set."""
    parent: str
    """Else this one of the home."""
    folder: str = ""
    """In that; empty: itself."""
    read_only: bool = False
    fixed: tuple[str, ...] = ()
    """What in it says which commands the agent runs: an agent behind a wall does not change it."""

    def path(self, env: Mapping[str, str]) -> str:
        home = env.get("HOME") or os.path.expanduser("~")
        return os.path.normpath(os.path.join(env.get(self.variable) or os.path.join(home, self.parent), self.folder))


class SignIn(msgspec.Struct, frozen=True):
    """What an agent that is signed in has: one of these variables, or this file where its transcripts are."""

    variables: tuple[str, ...]
    file: str


SessionTally = Callable[[str], Usage | None]
"""Takes a transcript line by line, and says what the whole session has used, as of lines that tell."""


class MessageTally:
    """For transcripts that tell it message by message. One may stand there several times, and grow."""

    def __init__(self, messages: Callable[[dict[str, Any]], Iterable[tuple[str, Usage]]]) -> None:
        """`messages`: the id of each message in a line that says what it used, and that."""
        self._messages = messages
        self._used: dict[str, Usage] = {}
        self._total = Usage()

    def __call__(self, line: str) -> Usage | None:
        for id, used in self._messages(document(line)):
            self._total += used.beyond(self._used.get(id, Usage()))
            self._used[id] = used
        return self._total if self._used else None


class Traits(msgspec.Struct, frozen=True, kw_only=True):
    """What one agent can be told, and what it cannot."""

    program: str
    """Looked for in PATH."""
    package: str = ""
    """Of the npm registry, which brings it."""
    provider: str = ""
    """Whose models it calls, as OpenTelemetry names them; empty where it calls those of several."""
    names_session: bool = True
    """Takes the id of a new session from us; otherwise it tells its own, or is found by its title."""
    titled: bool = False
    """Takes a title for a new session, by which its id can be looked up later."""
    forks: bool = False
    """Can go on in a copy of a session."""
    counts_turns: bool = False
    """Keeps to a number of turns by itself. Others are stopped by us."""
    counts_session: bool = False
    """What it says at its end that it used is that of the whole session, those it is a copy of included."""
    tells_cost: bool = False
    """Says what it has cost, at its end at the latest. Until then, and of others, the settings' price counts."""
    takes_tools: bool = True
    """Takes a list of allowed tools."""
    transcript: TranscriptLocation | None = None
    """None: it keeps no file that could be copied."""
    tokens_of: Callable[[], SessionTally] | None = None
    """Adds up what a transcript says that its session used: the stream may be cut off before it tells."""
    sign_in: SignIn | None = None
    """None: it has too many ways."""
    keeps: tuple[KeptFolder, ...] = ()
    """What it needs of the home folder, where it has a `sandbox`."""
    home_files: tuple[str, ...] = ()
    """Files of the home folder, of which it then gets a copy."""
    variables: tuple[str, ...] = ()
    """Variables it then inherits, by name or, with `_` at its end, by how the name begins; beside those to sign in."""
    own_sandbox: bool = False
    """Starts one of its own, which does not work inside ours, unless its permissions are `full`."""
    takes_schema: bool = False
    """Answers by a JSON schema. Others are asked for it in the prompt."""


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent is asked to do. The prompt reaches it on stdin: of any length, and in no list of processes."""

    model: str = ""
    permissions: Permissions = "edit"
    allowed_tools: tuple[str, ...] = ()
    max_turns: int | None = None
    budget_usd: float | None = None
    schema: Mapping[str, Any] | None = None
    command: tuple[str, ...] = ()
    session: str = ""
    """The id, or where the agent makes its own the title, of the new session."""
    goes_on: str = ""
    """The session to go on with: in a fork where the agent can, else in itself."""
    folder: str = ""
    """A private folder, gone after the attempt."""


class AgentInvocation(msgspec.Struct, frozen=True, kw_only=True):
    """How the program is started."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = {}
    """Added where the user has not set them."""
    files: Mapping[str, str] = {}
    """Written into the private folder first."""


class StreamUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """What one line of an agent's stream says."""

    session: str = ""
    model: str = ""
    shown: tuple[str, ...] = ()
    """For people, a line each: what the agent says and which tool it uses."""
    used: Usage | None = None
    """Paid for since the last time."""
    turn: bool = False
    """A turn is over: what it did to the files is done."""
    goes_on: bool | None = None
    """Whether more must follow: it uses a tool. An answer may be its last. None: the line does not tell."""


class AgentExit(msgspec.Struct, frozen=True):
    """The program has exited."""

    status: int | None = 0
    stderr: str = ""
    left: Mapping[str, str] = {}
    """Files it left in the private folder."""
    stopped: bool = False
    """By us: its status does not tell how it would have ended."""


class AgentVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """How the agent ended, as far as it can be told from what it said."""

    outcome: AgentOutcome
    text: str = ""
    """Its last answer."""
    why: str = ""
    """For outcomes other than ok: what it, or the service it calls, said."""
    json: Any = None
    turns: int = 0
    used: Usage | None = None
    """What had not been told before."""
    cost_usd: float | None = None
    """What all of it cost, also what was told before without its cost; None: it does not say."""
    denials: tuple[str, ...] = ()
    """Tools it asked for and did not get."""
    retry_after_s: float | None = None
    resets_at: float | None = None
    """When a limit that it reached is over, where it says so as a number: seconds since 1970."""
    session_lost: bool = False
    """The session it was to use does not exist, or its id is taken: a new one would help."""


class Reader(Protocol):
    """Reads the stream of one attempt, a line at a time. Lines that are no JSON, or unknown, say nothing."""

    def line(self, text: str) -> StreamUpdate: ...

    def verdict(self, ended: AgentExit) -> AgentVerdict: ...


class Agent(Protocol):
    """A module for one agent."""

    TRAITS: Traits

    def call(self, ask: Ask) -> AgentInvocation: ...

    def reader(self) -> Reader: ...


NOTHING_HEARD = StreamUpdate()


def document(text: str) -> dict[str, Any]:
    """The JSON object of a line; an empty one where there is none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def part(value: Any, *names: str) -> dict[str, Any]:
    """The object at a path of names; an empty one where there is none."""
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def count(value: Any) -> int:
    """A number of tokens; 0 for anything else."""
    return int(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0 else 0


def number(value: Any) -> float | None:
    """An amount, or a moment; None for anything else."""
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0 else None


def tool_line(name: Any, arguments: Any) -> str:
    """One line for people: the tool and the argument that tells most."""
    told = ""
    if isinstance(arguments, dict):
        known = [arguments[key] for key in _TELLING if isinstance(arguments.get(key), str)]
        told = known[0] if known else json.dumps(arguments, ensure_ascii=False) if arguments else ""
    elif isinstance(arguments, str):
        told = arguments
    told = " ".join(told.split())
    if len(told) > MAX_SHOWN:
        told = f"{told[:MAX_SHOWN]}…"
    return f"[{name}] {told}".rstrip()


_TELLING = ("file_path", "filePath", "path", "command", "cmd", "pattern", "query", "url", "prompt", "description")


# --- what went wrong ----------------------------------------------------------------------------------------------

_STATUS = re.compile(r"(?:\b(?:status|API Error|HTTP|code)\W{0,4}|\()(\d{3})\b", re.IGNORECASE)
_AUTH = re.compile(
    r"not logged in|log ?in again|authenticat|unauthori[sz]ed|invalid api key|api key not valid|no authentication"
    r"|you must specify the \w+ environment variable|set an auth method|expired token",
    re.IGNORECASE,
)
_BAD = re.compile(
    r"prompt is too long|context.?(window|length)|maximum context|unknown model"
    r"|model .{0,80}not (found|exist|supported)",
    re.IGNORECASE,
)
_SERVICE = re.compile(
    r"high demand|overloaded|stream (closed|disconnected)|connection (closed|reset|error)|mid-response"
    r"|malformed response|error decoding|terminated|incomplete json|fetch failed|network|timed? ?out"
    r"|without sending any chunks|failed to get response",
    re.IGNORECASE,
)


def outcome_of_status(status: int, text: str = "") -> AgentOutcome:
    """What an HTTP status of the service means; others than 402 and 429 may speak of a limit, too, in what they say."""
    known = _AUTH.search(text) or _BAD.search(text)
    if status in (402, 429) or (400 <= status < 500 and not known and speaks_of_limit(text)):
        return "api_rate"
    if status in (401, 403):
        return "api_auth"
    if status >= 500 or status == 408:
        return "api_5xx"
    return "bad_input" if 400 <= status < 500 else "agent_error"


def outcome_of_text(text: str) -> AgentOutcome:
    """What an error's text means, as far as texts can be trusted; `agent_error` for everything else."""
    found = _STATUS.search(text)
    if found and 400 <= int(found[1]) < 600:
        return outcome_of_status(int(found[1]), text)
    if _AUTH.search(text):
        return "api_auth"
    if _BAD.search(text):
        return "bad_input"
    if speaks_of_limit(text):
        return "api_rate"
    return "api_5xx" if _SERVICE.search(text) else "agent_error"


def seconds(value: object) -> float | None:
    """A `Retry-After` in seconds; None for anything else."""
    try:
        wait_s = float(str(value))
    except ValueError:
        return None
    return wait_s if 0 <= wait_s < 86_400 else None
