"""All runs, newest first, and what waits for an answer."""

from __future__ import annotations

from datetime import UTC, datetime
from hashlib import blake2b
from typing import get_args
from urllib.parse import urlencode

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from agentos.client.places import FoundRun, PlaceProblem, RunList, RunStatus, list_runs
from agentos.client.views import money
from agentos.client.waiting import OpenGate, OpenGates, list_open_gates
from agentos.exceptions import AgentosError, NotFoundError
from agentos.web.site import Note, Site, key_of, site_of

PAGE = 50
SHOWN = 3
"""So many questions stand above the runs; more are unfolded, and of these at most MOST."""
MOST = 20
STATUSES: tuple[RunStatus, ...] = get_args(RunStatus)
_VIEWS: dict[str, tuple[RunStatus, ...]] = {
    "All": (),
    "Under way": ("running", "pending"),
    "Waiting for me": ("waiting",),
    "Only failed": ("failed",),
    "Stopped": ("interrupted", "paused"),
}


class Filters(msgspec.Struct, frozen=True, kw_only=True):
    """Which runs are listed, as the address says."""

    statuses: tuple[RunStatus, ...] = ()
    name: str = ""
    labels: tuple[str, ...] = ()
    text: str = ""
    before: str = ""
    """The run behind which the page begins: the key of its place, `/`, its id."""

    def url(self) -> str:
        """The list's address with these filters."""
        pairs = [("status", one) for one in self.statuses] + [("label", one) for one in self.labels]
        single = {"name": self.name, "q": self.text, "before": self.before}
        return f"/?{urlencode(asked)}" if (asked := [*pairs, *((k, v) for k, v in single.items() if v)]) else "/"

    def but(self, **changes: object) -> str:
        """The address with other filters; from the newest run on, unless `before` is among them."""
        return msgspec.structs.replace(self, **{"before": "", **changes}).url()

    @property
    def is_any(self) -> bool:
        """Whether anything is left out."""
        return bool(self.statuses or self.name or self.labels or self.text)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the table."""

    id: str
    """Names its element on the page."""
    run: FoundRun
    where: str
    """Its worktree, and where several hosts have some, its host."""
    seconds: float
    """From its beginning to its last event; to now, while somebody drives it."""
    cost: str
    """Empty where no model was paid, `…` where nobody has counted yet."""


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """One open gate of the inbox."""

    id: str
    gate: OpenGate
    where: str


def show(request: Request) -> Response:
    """The page `/`."""
    site, filters = site_of(request), read_filters(request)
    found, gates = _ask(request, site, filters)
    rows = _rows(site, found.runs[:PAGE])
    questions = [] if filters.before else gates.gates
    places = [*(row.where for row in rows), *(_where(gate.run) for gate in questions[:MOST])]
    older = found.runs[PAGE - 1] if len(found.runs) > PAGE else None
    return site.render(
        request,
        "run_list.html",
        filters=filters,
        rows=rows,
        questions=[
            Question(id=_id_of(gate.run, gate.opened.gate_id), gate=gate, where=_where(gate.run))
            for gate in questions[:MOST]
        ],
        asked=len(questions),
        shown=SHOWN,
        is_folded=filters.is_any and filters != Filters(statuses=("waiting",)),  # what was looked for comes first
        problems=_each_once([*found.problems, *gates.problems]),
        has_several=len(set(places)) > 1,
        has_costs=any(row.cost for row in rows),
        views=[(name, filters.but(statuses=them), set(them) == set(filters.statuses)) for name, them in _VIEWS.items()],
        statuses=STATUSES,
        # What cannot be typed is not proposed: a browser would obey it.
        names=sorted({name for row in rows if (name := row.run.record.name).isprintable()}),
        labels=sorted({label for row in rows for label in row.run.record.labels}),
        older=filters.but(before=_mark(older)) if older is not None else "",
    )


def read_filters(request: Request) -> Filters:
    """What the address asks for; a status that there is not is passed over."""
    asked = request.query_params
    return Filters(
        statuses=tuple(one for one in STATUSES if one in asked.getlist("status")),
        name=asked.get("name", ""),
        labels=tuple(label for one in asked.getlist("label") if (label := one.strip())),
        text=asked.get("q", "").strip(),
        before=asked.get("before", ""),
    )


def _ask(request: Request, site: Site, filters: Filters) -> tuple[RunList, OpenGates]:
    """The runs, one more than a page has, and the inbox. What cannot be read is told, and hides nothing else."""
    found, gates = RunList(runs=[], problems=[]), OpenGates(gates=[], problems=[])
    where = "this worktree" if site.repo is None else str(site.repo)
    before = None
    if filters.before:
        key, _, run_id = filters.before.partition("/")
        try:
            before = site.find_run(key, run_id)
        except NotFoundError:
            site.note(request, Note(text="The run behind which that page began is gone. These are the newest runs."))
    try:
        found = list_runs(
            site.repo,
            everywhere=site.everywhere,
            statuses=filters.statuses,
            labels=filters.labels,
            name=filters.name or None,
            text=filters.text,
            before=before,
            limit=PAGE + 1,
        )
        gates = list_open_gates(site.repo, everywhere=site.everywhere, summaries=site.summaries)
    except AgentosError as error:
        found = RunList(runs=found.runs, problems=[PlaceProblem(where=where, error=error)])
    return found, gates


def _rows(site: Site, runs: list[FoundRun]) -> list[Row]:
    now, several = datetime.now(UTC), len({run.record.host for run in runs if run.record.host}) > 1
    rows = []
    for run, spent in zip(runs, site.summaries.read_usage(runs), strict=True):
        record = run.record
        until = now if record.holder is not None else record.updated_at
        cost = "…" if spent is None else money(spent.cost_usd) if spent.cost_usd else ""
        host = f"{record.host}:" if several and record.host else ""
        seconds = (until - record.created_at).total_seconds()
        rows.append(Row(id=_id_of(run), run=run, where=f"{host}{_where(run)}", seconds=seconds, cost=cost))
    return rows


def _where(run: FoundRun) -> str:
    return run.record.root or str(run.place.root)


def _mark(run: FoundRun) -> str:
    return f"{key_of(run.place)}/{run.record.workflow_id}"


def _id_of(run: FoundRun, gate_id: str = "") -> str:
    """The same each time, so that a page which follows what happens keeps its focus."""
    return f"r{blake2b(f'{_mark(run)}/{gate_id}'.encode(), digest_size=8).hexdigest()}"


def _each_once(problems: list[PlaceProblem]) -> list[PlaceProblem]:
    """A place that cannot be read is told once, whoever asked it."""
    return list({(problem.where, str(problem.error)): problem for problem in problems}.values())
