"""The agent of the demo: scripted, so that it needs no key and no network. It speaks as Gemini CLI does.

Like that one it prints what it does as JSON, keeps a transcript, and with `--resume` goes on where that ends. It knows
nothing of AgentOS. Its edit of cart.py takes a while, and is wrong where any part of it is made twice.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

TURNS = (("prices.py", r"(\d)\.(\d\d)", r"\1\2"), ("cart.py", r":\.2f", " / 100:.2f"))
"""For each turn: a file, what is replaced in it, and by what."""
MODEL_S = 1.5
"""What a model would think between two turns."""
PLACE_S = {"prices.py": 0.0, "cart.py": 0.7}
"""From one place in a file to the next."""


def main(arguments: list[str]) -> int:
    if "--version" in arguments:
        print("0.0")
        return 0
    goes_on = "--resume" in arguments
    session = arguments[arguments.index("--resume" if goes_on else "--session-id") + 1]
    transcript = transcript_of(Path(os.environ["GEMINI_CLI_HOME"]), session)
    if goes_on and not transcript.exists():
        print(f"Invalid session identifier {session!r}", file=sys.stderr)
        return 42
    transcript.parent.mkdir(parents=True, exist_ok=True)
    with transcript.open("a+", buffering=1) as file:
        file.seek(0)
        made = sum(json.loads(line)["type"] == "tool_result" for line in file)
        converse(session, made, lambda **entry: file.write(json.dumps(entry) + "\n"))
    return 0


def transcript_of(home: Path, session: str) -> Path:
    return home / ".gemini" / "tmp" / "demo" / "chats" / f"session-demo-{session[:8]}.jsonl"


def converse(session: str, made: int, note: Any) -> None:
    note(type="user", session=session, content=sys.stdin.read())
    say(type="init", session_id=session, model="scripted")
    for turn, (name, pattern, replacement) in enumerate(TURNS[made:], start=made + 1):
        time.sleep(MODEL_S if turn > made + 1 else 0)
        file = Path(name)
        note(type="tool_use", turn=turn, file=name, found=hashlib.sha256(file.read_bytes()).hexdigest())
        say(type="tool_use", tool_id=str(turn), tool_name="replace", parameters={"file_path": name})
        replace_slowly(file, pattern, replacement, PLACE_S[name])
        note(type="tool_result", turn=turn)
        say(type="tool_result", tool_id=str(turn), status="success")
    say(type="message", role="assistant", content="Prices are whole cents now.\n")
    say(type="result", status="success")


def replace_slowly(file: Path, pattern: str, replacement: str, place_s: float) -> None:
    text, at = file.read_text(), 0
    while match := re.compile(pattern).search(text, at):
        time.sleep(place_s if at else 0)
        new = match.expand(replacement)
        text, at = text[: match.start()] + new + text[match.end() :], match.start() + len(new)
        file.write_text(text)


def say(**event: Any) -> None:
    print(json.dumps(event), flush=True)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
