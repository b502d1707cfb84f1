"""Going on with a run after an answer, where nobody else drives it."""

from __future__ import annotations

import msgspec

from agentos.cli.drive_flags import DriveFlags
from agentos.cli.exits import Exit
from agentos.cli.output import say
from agentos.cli.terminal.file_choice import drive_with_files
from agentos.exceptions import LeaseHeldError
from agentos.workflow.files.decisions import FilesChoice
from agentos.workflow.place.run_search import FoundRun
from agentos.workflow.start.resume import resume_run


def go_on(found: FoundRun, files: FilesChoice = "ask") -> int:
    """Resume the run in this terminal, as `agentos resume` does; the exit code.

    Where somebody else has begun to drive it meanwhile, they go on with it: that is as good.
    """
    _, options, manner = DriveFlags().resolve(found.place.root)
    options = msgspec.structs.replace(options, files=files)
    run = found.record.workflow_id
    try:
        return drive_with_files(
            lambda options: resume_run(found.place, run, options=options), found.place, options, manner
        )
    except LeaseHeldError as error:
        say(f"{error.message}, and goes on there.")
        return Exit.COMPLETE
