"""One sample in a process of its own: `python -m bench.worker CONTENDER WORKLOAD FOLDER PARAMETERS`.

What was measured is written to `result.json` in the folder, so that nothing a contender prints is in the way.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path

from bench.contenders import CONTENDERS


def main() -> None:
    contender, workload, folder, parameters = sys.argv[1:]
    os.environ["BENCH_CONTENDER"] = contender
    module = CONTENDERS[contender].module
    if "/" in workload:  # a workload of another module of the same contender
        module, workload = workload.split("/")
    act = getattr(importlib.import_module(f"bench.contenders.{module}"), workload)
    metrics = act(Path(folder), **json.loads(parameters))
    Path(folder, "result.json").write_text(json.dumps(metrics))


if __name__ == "__main__":
    main()
