"""One task, durable, with sqlite3 alone."""

import asyncio
import json
import sqlite3

connection = sqlite3.connect("hello.db", isolation_level=None)
connection.execute("PRAGMA journal_mode = WAL")
connection.execute("PRAGMA synchronous = FULL")
connection.execute("CREATE TABLE IF NOT EXISTS result (task TEXT, body TEXT)")


async def hello() -> str:
    return "hello"


text = asyncio.run(hello())
connection.execute("INSERT INTO result VALUES (?, ?)", ("hello", json.dumps(text)))
print(text)
