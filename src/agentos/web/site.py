"""What all pages ask: runs by their address, what was read of them, the templates, forms and notes."""

from __future__ import annotations

import shlex
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlencode

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse

from agentos.client.places import FoundRun, Place, Scope, decode_scope, find_in, list_places
from agentos.client.views import StoredRun, money
from agentos.client.waiting import Summaries
from agentos.exceptions import NotFoundError
from agentos.ids import short_id
from agentos.render.plan_svg import STATUS_MARKS
from agentos.render.text import ago, count, duration, local, printable, printable_lines, short, short_middle
from agentos.version import VERSION
from agentos.web.journals import Journals, digest
from agentos.web.seals import Seals
from agentos.web.task_reads import TaskReads


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the last thing that was asked for, told once on the next page."""

    text: str
    is_problem: bool = False
    next_step: str = ""
    link: str = ""
    """A page of ours that goes on from here, with the words for it in `link_text`."""
    link_text: str = ""


class ChangedFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Files that differ between two trees."""

    count: int
    lines: list[str]
    """The first of them, as `A  path`."""


class Site:
    """One server's pages. `repo` is the worktree it was started for; None: wherever runs are known."""

    def __init__(self, repo: Path | None = None, *, everywhere: bool = True) -> None:
        self.repo, self.everywhere = repo, everywhere
        self.journals = Journals()
        self.summaries = Summaries()
        self.tasks = TaskReads()
        self.seals = Seals()
        self.changed_files: dict[tuple[str, str], ChangedFiles] = {}
        """What is known of pairs of trees."""
        self._notes: dict[str, Note] = {}
        self._places: dict[str, Place] = {}
        self.templates = Environment(
            loader=PackageLoader("agentos.web"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self.templates.filters |= {
            "text": printable,
            "lines": printable_lines,
            "short": lambda value, most=120: short(printable(str(value)), most),
            "middle": lambda value, most=40: short_middle(printable(str(value)), most),
            "ago": lambda at: ago(at, datetime.now(UTC)),
            "local": local,
            "duration": duration,
            "money": money,
            "count": count,
            "shell": shlex.quote,
            "short_id": short_id,
            "mark": lambda status: STATUS_MARKS.get(status, "·"),
        }
        self.templates.globals |= {"version": VERSION, "run_url": self.run_url}

    # --- places and runs ------------------------------------------------------------------------------------------

    def places(self) -> dict[str, Place]:
        """The places whose runs are shown, by their key in addresses. Asked anew each time: worktrees come and go."""
        found = list_places(everywhere=self.everywhere, repo=self.repo)
        self._places = {key_of(place).partition(".")[0]: place for place in found}
        return self._places

    def find(self, request: Request) -> FoundRun:
        """The run that an address names. NotFoundError."""
        key, run_id = request.path_params["key"], request.path_params["run"]
        return self.find_run(key, run_id)

    def find_run(self, key: str, run_id: str) -> FoundRun:
        """The run of this id in the place of this key. NotFoundError where either is not there (any more)."""
        scope = _scope_in(key)
        base = key.partition(".")[0]
        place = self._places.get(base) or self.places().get(base)
        if place is None:
            raise NotFoundError(
                "the worktree of this run is not known here", next_step="The list shows those that are: go to /"
            )
        found = find_in(place.of(scope) if scope is not None else place, run_id)
        if found.record.workflow_id != run_id:  # an address names a run whole: a prefix may mean another one tomorrow
            raise NotFoundError(f"there is no run {run_id!r} here", next_step="The list shows those that are: go to /")
        return found

    def read(self, found: FoundRun, at: int | None = None) -> StoredRun:
        """What is known of a run, now or as of an event."""
        return self.journals.read(found, at)

    def run_url(self, found: FoundRun, page: str = "run", **query: Any) -> str:
        """The address of a page about a run; `query` values that are None are left out, those of a tuple all named."""
        asked = {name: value for name, value in query.items() if value is not None}
        path = f"/{page}/{key_of(found.place)}/{quote(found.record.workflow_id, safe='')}"
        return f"{path}?{urlencode(asked, doseq=True)}" if asked else path

    def live_url(self, found: FoundRun, journal: StoredRun, task: str | None = None) -> str:
        """Where a page that shows this much of a run hears of what is new; `task` is one whose log it shows."""
        asked = {"run": f"{key_of(found.place)}/{found.record.workflow_id}", "seen": digest(journal.record)}
        return f"/live?{urlencode(asked | ({'task': task} if task and journal.record.holder else {}))}"

    # --- answers to requests --------------------------------------------------------------------------------------

    def render(self, request: Request, template: str, *, status: int = 200, **context: Any) -> HTMLResponse:
        """A page. Programs that ask for a part (`X-Part`) get the same: they take of it what they need."""
        session = getattr(request.state, "session", "")
        note = self._notes.pop(session, None) if "x-part" not in request.headers else None
        page = self.templates.get_template(template)
        text = page.render(request=request, note=note, form=self._form(request), **context)
        return HTMLResponse(text, status_code=status)

    def _form(self, request: Request) -> Any:
        """What templates call: `form("pause", run=…)` gives the hidden fields of a sealed form."""
        session = request.state.session

        def seal(action: str, found: FoundRun | None = None, **fields: Any) -> Mapping[str, str]:
            values = {name: str(value) for name, value in fields.items() if value is not None}
            if found is not None:
                values |= {"key": key_of(found.place), "run": found.record.workflow_id}
            return self.seals.seal(session, action, values)

        return seal

    def note(self, request: Request, note: Note) -> None:
        """Tell this browser session something on the next page it opens."""
        self._notes[request.state.session] = note


def site_of(request: Request) -> Site:
    """What this server shows."""
    site: Site = request.app.state.site
    return site


def key_of(place: Place) -> str:
    """Stands for a place in addresses, the same as long as its database stays where it is; of a server, with whose
    runs are meant."""
    key = blake2b(place.database.encode(), digest_size=6).hexdigest()
    if place.scope is None or place.everywhere:
        return key
    return f"{key}.{urlsafe_b64encode(msgspec.json.encode(place.scope)).decode().rstrip('=')}"


def _scope_in(key: str) -> Scope | None:
    """Whose runs a key means, where it says so. NotFoundError where it is none of ours."""
    encoded = key.partition(".")[2]
    try:
        return decode_scope(urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))) if encoded else None
    except ValueError as error:  # msgspec's errors are ValueErrors, as those of base64 are
        raise NotFoundError("this address names no run", next_step="The list shows those that are: go to /") from error


def parse_form(body: bytes) -> dict[str, list[str]]:
    """Fields of a form as browsers send it: each name with all its values."""
    text = body.decode("utf-8", "replace")
    return parse_qs(text, keep_blank_values=True, max_num_fields=10_000)
