"""The model of `overnight.py`: it answers every agent of the night, in any order, and keeps a book of what was paid.

It knows nothing but what it is asked, as a model does: which job it is (`JOB run/task STEPS n`), and how many steps the
last tool said are left. Who was interrupted is told to do the next step, whichever that is.
"""

from __future__ import annotations

import random
import re
import threading
import time
from collections import defaultdict, deque
from typing import NamedTuple

from msgspec import structs

from tests.agents.script import PROTOCOLS, RunShell, offered, with_tool
from tests.models.received import Received
from tests.models.replies import Answer, Failure, Reply, says
from tests.models.server import ModelServer

JOB = re.compile(r"JOB ([\w-]+)/(\w+) STEPS (\d+)")
_NEW_MESSAGE = re.compile(r"You were interrupted|is not accepted yet")
_LEFT = re.compile(r"LEFT (\d+)")
MAX_ANSWERS = 80
"""Of one job: an agent that asks more often than that goes round in circles."""

STEP = """\
# sh step.sh RUN TASK STEPS: does the next step, one file more, and says how many are left.
folder="out/$1"; mkdir -p "$folder"
step=1
while [ "$step" -le "$3" ] && [ -e "$folder/$2-$step" ]; do step=$((step + 1)); done
if [ "$step" -le "$3" ]; then
    half="$folder/$2.half.$$"
    echo half > "$half"; sleep 0.3
    echo "step $step of $2" > "$folder/$2-$step"; rm "$half"
else
    step=$3
fi
echo "LEFT $(($3 - step))"
"""
PROGRAM = '''\
"""An agent of our own: the task on stdin, the model at $OPENAI_BASE_URL, the answer on stdout."""

import json, os, subprocess, sys, urllib.error, urllib.request

talk = [{"role": "user", "content": sys.stdin.read()}]
while True:
    asked = {"model": "scripted", "messages": talk, "tools": [{"type": "function", "function": {"name": "bash"}}]}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    request = urllib.request.Request(url, json.dumps(asked).encode(), {"Content-Type": "application/json"})
    try:
        said = json.load(urllib.request.urlopen(request))["choices"][0]["message"]
    except urllib.error.HTTPError as error:
        sys.exit(75 if error.code == 429 else f"the model failed: {error}")
    if not said.get("tool_calls"):
        print(said["content"])
        break
    talk.append(said)
    for call in said["tool_calls"]:
        command = json.loads(call["function"]["arguments"])["command"]
        told = subprocess.run(command, shell=True, stdout=subprocess.PIPE, text=True).stdout
        talk.append({"role": "tool", "tool_call_id": call["id"], "content": told})
'''


class Job(NamedTuple):
    """A task of a run, as the model knows it."""

    run: str
    task: str


class Paid(NamedTuple):
    """An answer that the model gave, or began to give."""

    request: Received
    answer: Answer

    @property
    def tokens(self) -> tuple[int, int]:
        return self.answer.input_tokens, self.answer.output_tokens


class NightModel:
    """A server for all agents of the night. `trouble` is what the next calls to a path get instead of an answer."""

    def __init__(self, chance: random.Random) -> None:
        self.server = ModelServer(PROTOCOLS)
        self.book: dict[Job, list[Paid]] = defaultdict(list)
        self.strangers: list[Received] = []
        """Calls that belong to no job: paid, and nobody knows for what."""
        self.failed: list[Failure] = []
        self._trouble: dict[str, deque[Failure]] = defaultdict(deque)
        self._refused: dict[str, tuple[Failure, float]] = {}
        self._chance = chance
        self._lock = threading.Lock()
        self.server.choose(self._choose)

    def make_trouble(self, path: str, *failures: Failure) -> None:
        """The next calls whose path ends so fail."""
        with self._lock:
            self._trouble[path].extend(failures)

    def refuse(self, path: str, refusal: Failure, *, until: float) -> None:
        """Every call whose path ends so fails until then, in seconds since 1970."""
        with self._lock:
            self._refused[path] = (refusal, until)

    def clear(self) -> None:
        """No more trouble from now on."""
        with self._lock:
            self._trouble.clear()
            self._refused.clear()

    def _choose(self, request: Received) -> Reply:
        with self._lock:
            if (failure := self._next_failure(request.path.partition("?")[0])) is not None:
                self.failed.append(failure)
                return failure
            found = JOB.search(request.text)
            if found is None:
                self.strangers.append(request)
                return says("a title")
            paid = self.book[Job(found[1], found[2])]
            answer = self._answer(request, Job(found[1], found[2]), int(found[3]), len(paid))
            number = request.number  # each costs something else, so that a sum tells which ones are in it
            answer = structs.replace(
                answer,
                input_tokens=20 + number % 29,
                output_tokens=3 + number % 11,
                pause_s=self._chance.uniform(0.02, 0.12),
            )
            paid.append(Paid(request, answer))
            return answer

    def _next_failure(self, asked: str) -> Failure | None:
        for path, (refusal, until) in self._refused.items():
            if asked.endswith(path) and time.time() < until:
                return refusal
        for path, failures in self._trouble.items():
            if failures and asked.endswith(path):
                return failures.popleft()
        return None

    def _answer(self, request: Received, job: Job, steps: int, given: int) -> Answer:
        since = request.text[max((found.end() for found in _NEW_MESSAGE.finditer(request.text)), default=0) :]
        left = _LEFT.findall(since)
        if given >= MAX_ANSWERS:
            return says("I give up.")
        if not steps or (left and left[-1] == "0"):
            return says("All done.")
        return with_tool(RunShell(f"sh step.sh {job.run} {job.task} {steps}"), offered(request))
