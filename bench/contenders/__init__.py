"""Who is measured. Each module has a function for every workload it can do; each sample is a process of its own."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One who does the work."""

    label: str
    module: str
    packages: tuple[str, ...] = ()
    """Distributions it needs; where one is missing its rows say so."""


CONTENDERS: dict[str, Contender] = {
    "asyncio": Contender(label="asyncio, nothing durable", module="plain"),
    "raw": Contender(label="raw sqlite3, WAL, FULL", module="raw"),
    "agentos": Contender(label="agentos", module="ours", packages=("msgspec",)),
    "agentos-process": Contender(label="agentos, durability=process", module="ours", packages=("msgspec",)),
    "agentos-ui": Contender(
        label="agentos ui", module="ours_page", packages=("jinja2", "playwright", "starlette", "uvicorn")
    ),
    "agentos-dask": Contender(label="agentos on Dask", module="ours_cluster", packages=("cryptography", "distributed")),
    "agentos-otel": Contender(
        label="agentos, traced live",
        module="ours_trace",
        packages=("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http"),
    ),
    "langgraph": Contender(
        label="LangGraph, SQLite saver, sync",
        module="langgraph_sqlite",
        packages=("langgraph", "langgraph-checkpoint-sqlite"),
    ),
    "dbos": Contender(label="DBOS on SQLite, as shipped", module="dbos_sqlite", packages=("dbos",)),
    "dbos-wal": Contender(label="DBOS, its file set to WAL", module="dbos_sqlite", packages=("dbos",)),
}
OURS = ("agentos", "agentos-process")
FLOORS = ("asyncio", "raw")
PEERS = ("langgraph", "dbos", "dbos-wal")
