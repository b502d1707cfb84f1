"""A run of raw sqlite3 that dies in its last task, and goes on when it is started again."""

import asyncio
import json
import os
import sqlite3
from pathlib import Path

from bench.task import START, advance, die_if_asked, stamp


def main() -> None:
    connection = sqlite3.connect(Path("raw.db"), isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE IF NOT EXISTS result (no INTEGER PRIMARY KEY, task TEXT, body TEXT)")
    rows = connection.execute("SELECT task, body FROM result ORDER BY no").fetchall()
    results = {task: json.loads(body) for task, body in rows}

    async def go() -> None:
        tasks = int(os.environ["BENCH_TASKS"])
        value = START
        for number in range(tasks + 1):
            if f"t{number}" in results:
                value = results[f"t{number}"]
                continue
            if number == tasks:
                die_if_asked()
                stamp()
            value = advance(value)
            connection.execute("INSERT INTO result (task, body) VALUES (?, ?)", (f"t{number}", json.dumps(value)))

    asyncio.run(go())


main()
