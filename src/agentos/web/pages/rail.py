"""Checkpoints of a run: what changed from one to the next, comparing two, and restore, undo and fork with a preview."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from agentos.client import diffs, files
from agentos.client.detached import fork_detached
from agentos.client.files import RestoreReport
from agentos.client.places import FoundRun, find_in
from agentos.client.types import events as ev
from agentos.client.views import StoredRun, run_view
from agentos.exceptions import CheckpointNotFoundError, RunRefusedError
from agentos.render.difference_text import difference_lines
from agentos.render.text import count, short
from agentos.render.value_text import change_lines
from agentos.web.patches import read_patch
from agentos.web.site import ChangedFiles, Note, Site, site_of

if TYPE_CHECKING:
    from agentos.client.types import CheckpointRecord

NOW = "now"
"""Names the state of a run as it stands, among its checkpoints."""
MOST_ASKED, MOST_KEPT = 12, 5_000
"""Of so many pairs of checkpoints git is asked what differs at one look, newest first; the others at the next look."""
NAMED = 3
LONGEST = 2_000
"""Parameters that are longer are not for a field in a form."""
_OF_FILES = (ev.Checkpointed, ev.RolledBack, ev.FilesCaptured)
Pair = tuple[str, str]


class RailRow(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint in the rail."""

    cut: CheckpointRecord
    before: str | None
    """The kept checkpoint it came after; None: the beginning of the run."""
    changed: ChangedFiles | None
    """Files, since then; None where that is not known, or was not asked yet."""
    is_newest: bool
    is_rolled_back: bool


def rail_rows(site: Site, found: FoundRun, journal: StoredRun) -> list[RailRow]:
    """Kept checkpoints of the run, newest first."""
    before, trees, now = _history(journal)
    live = {now}
    while (now := before.get(now)) is not None:
        live.add(now)
    kept = {str(cut.id): cut for cut in reversed(journal.checkpoints)}
    begin = next(iter(trees.values()), "")
    rows: list[tuple[CheckpointRecord, str | None, Pair]] = []
    for name, cut in kept.items():
        above = before.get(name)
        while above is not None and above not in kept:  # pruned since
            above = before.get(above)
        old = begin if above is None else trees.get(kept[above].snapshot, "")
        rows.append((cut, above, (old, trees.get(cut.snapshot, ""))))
    changed = _changes(site, found, [pair for _, _, pair in rows])
    newest = next((name for name in kept if name in live), None)
    return [
        RailRow(
            cut=cut,
            before=above,
            changed=changed.get(pair),
            is_newest=cut.id == newest,
            is_rolled_back=cut.id not in live,
        )
        for cut, above, pair in rows
    ]


def _history(journal: StoredRun) -> tuple[dict[str | None, str | None], dict[str, str], str | None]:
    """After which checkpoint each one came, also where the run went back; the tree of each snapshot; the last one."""
    before: dict[str | None, str | None] = {}
    trees: dict[str, str] = {}
    now: str | None = None
    for event in journal.events:
        if type(event) not in _OF_FILES:
            continue
        if isinstance(event, ev.Checkpointed):
            before[event.checkpoint_id] = now
            now = event.checkpoint_id
        elif isinstance(event, ev.RolledBack):
            now = event.checkpoint_id
        elif isinstance(event, ev.FilesCaptured) and event.tree:
            trees[event.snapshot] = event.tree
    return before, trees, now


def _changes(site: Site, found: FoundRun, pairs: Sequence[Pair]) -> Mapping[Pair, ChangedFiles]:
    """What differs, as far as it is known: a tree never changes, so that nothing is asked twice."""
    known = site.changed_files
    told = {pair: ChangedFiles(count=0, lines=[]) for pair in pairs if pair[0] and pair[0] == pair[1]}
    told |= {pair: one for pair in pairs if (one := known.get(pair)) is not None}
    asked = [pair for pair in dict.fromkeys(pairs) if all(pair) and pair not in told][:MOST_ASKED]
    for pair, changes in zip(asked, diffs.changed_files(found, asked), strict=False):
        if changes is not None:
            if len(known) >= MOST_KEPT:
                known.clear()
            known[pair] = told[pair] = ChangedFiles(count=len(changes), lines=list(change_lines(changes[:NAMED])))
    return told


# --- pages ----------------------------------------------------------------------------------------------------------


def compare(request: Request) -> Response:
    """What differs between two checkpoints, or one and the run as it stands: state, and files with their diffs."""
    site = site_of(request)
    found = site.find(request)
    rows = rail_rows(site, found, site.read(found))
    cuts = {str(row.cut.id): row.cut for row in rows}
    asked_b = request.query_params.get("b") or (str(rows[0].cut.id) if rows else NOW)
    above = next((row.before for row in rows if row.cut.id == asked_b), None)
    asked_a = request.query_params.get("a") or above or (str(rows[-1].cut.id) if rows else NOW)
    sides = [_find_cut(cuts, name) for name in (asked_a, asked_b)]
    shown, patch = diffs.compare(found, sides[0], sides[1])
    return site.render(
        request,
        "compare.html",
        found=found,
        rows=rows,
        a=asked_a,
        b=asked_b,
        now=NOW,
        shown=shown,
        state=list(difference_lines(shown.difference))[1:],
        patch=read_patch(patch),
    )


def restore(request: Request) -> Response:
    """What putting the files of a checkpoint back would write, and the form that does it."""
    site = site_of(request)
    found = site.find(request)
    cut = _checkpoint_of(request, site, found)
    report = files.restore(cut.id, _root(found), dry_run=True)
    return _preview(request, site, found, report, cut)


def undo(request: Request) -> Response:
    """What bringing back the files that the last restore replaced would write, and the form that does it."""
    site = site_of(request)
    found = site.find(request)
    return _preview(request, site, found, files.undo(_root(found), dry_run=True), None)


def _preview(
    request: Request, site: Site, found: FoundRun, report: RestoreReport, cut: CheckpointRecord | None
) -> Response:
    lines = list(change_lines(report.changes))
    return site.render(
        request, "restore.html", found=found, cut=cut, report=report, lines=lines, seen=_report_digest(report)
    )


def fork(request: Request) -> Response:
    """What a new run from a checkpoint would begin with, and the form that begins it."""
    site = site_of(request)
    found = site.find(request)
    cut = _checkpoint_of(request, site, found)
    view = run_view(site.read(found, cut.sequence), values=False)
    done = [task.id for task in view.tasks if task.status in ("complete", "failed_safe", "skipped")]
    return site.render(
        request,
        "fork.html",
        found=found,
        cut=cut,
        done=done,
        left=[task.id for task in view.tasks if task.id not in set(done)],
        params=_params(site.read(found)),
    )


# --- actions --------------------------------------------------------------------------------------------------------

Fields = Mapping[str, str]
Typed = Mapping[str, list[str]]


def _restore(site: Site, request: Request, found: FoundRun, sealed: Fields, typed: Typed) -> Response | Note:
    root, cut = _root(found), sealed["checkpoint"]
    if _report_digest(files.restore(cut, root, dry_run=True)) != sealed["seen"]:
        return _show_anew(site, request, site.run_url(found, "restore", checkpoint=cut))
    done = files.restore(cut, root)
    return _restore_note(site, found, done, f"put back to checkpoint {cut}")


def _undo(site: Site, request: Request, found: FoundRun, sealed: Fields, typed: Typed) -> Response | Note:
    root = _root(found)
    if _report_digest(files.undo(root, dry_run=True)) != sealed["seen"]:
        return _show_anew(site, request, site.run_url(found, "undo"))
    return _restore_note(site, found, files.undo(root), "brought back")


def _restore_note(site: Site, found: FoundRun, done: RestoreReport, what: str) -> Note:
    text = f"{count(len(done.changes), 'path')} {what}. What was there is snapshot {done.undo}."
    return Note(text=text, link=site.run_url(found, "undo"), link_text="Undo this…")


def _show_anew(site: Site, request: Request, address: str) -> Response:
    site.note(request, Note(text="The files have changed since this was shown. Nothing was done.", is_problem=True))
    return RedirectResponse(address, status_code=303)


def _fork(site: Site, request: Request, found: FoundRun, sealed: Fields, typed: Typed) -> Response:
    given = {name: values[0].replace("\r\n", "\n") for name, values in typed.items()}
    changed = [
        f"{name}={value}"
        for name, was in _params(site.read(found)).items()
        if (value := given.get(f"param.{name}")) is not None and value != was.replace("\r\n", "\n")
    ]
    new_id = given.get("workflow_id", "").strip() or None
    begun = fork_detached(found, sealed["checkpoint"], workflow_id=new_id, params=changed)
    text = f"Forked from {found.record.workflow_id}. Process {begun.pid} drives this run, whatever becomes of the page."
    site.note(request, Note(text=text))
    return RedirectResponse(site.run_url(find_in(found.place, begun.workflow_id)), status_code=303)


ACTIONS = {"restore": _restore, "undo": _undo, "fork": _fork}


# --- what is meant --------------------------------------------------------------------------------------------------


def _checkpoint_of(request: Request, site: Site, found: FoundRun) -> CheckpointRecord:
    """The checkpoint that the address names; without one, the newest that counts."""
    journal = site.read(found)
    cuts = {str(cut.id): cut for cut in journal.checkpoints}
    name = request.query_params.get("checkpoint") or next(
        (str(cut.id) for cut in reversed(journal.checkpoints) if not cut.abandoned), ""
    )
    if not name:
        raise RunRefusedError("this run has no checkpoint yet", next_step="One is cut when a layer is finished.")
    cut = _find_cut(cuts, name)
    if cut is None:
        raise CheckpointNotFoundError(name)
    return cut


def _find_cut(cuts: Mapping[str, CheckpointRecord], name: str) -> CheckpointRecord | None:
    """None: the run as it stands. CheckpointNotFoundError."""
    if name != NOW and name not in cuts:
        raise CheckpointNotFoundError(short(name, 100))
    return cuts.get(name)


def _root(found: FoundRun) -> Path:
    """Whose files are meant: those of the run's own worktree, never of another one that shares its database."""
    place, record = found.place, found.record
    if not place.named and record.root and record.root != str(place.root):
        raise RunRefusedError(f"the worktree of this run is not here: {record.root}")
    return place.root


def _report_digest(report: RestoreReport) -> str:
    """Stands for what was shown: another one where something else would be written."""
    shown = msgspec.json.encode([report.snapshot, report.changes, report.left, report.missing])
    return blake2b(shown, digest_size=16).hexdigest()


def _params(journal: StoredRun) -> dict[str, str]:
    """The parameters of the run, as somebody would type them."""
    values: Iterable[tuple[str, object]] = journal.plan.params.items() if journal.plan is not None else ()
    texts = {name: value if isinstance(value, str) else msgspec.json.encode(value).decode() for name, value in values}
    return {name: text for name, text in texts.items() if len(text) <= LONGEST and "=" not in name}
