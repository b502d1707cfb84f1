"""One node, durable, with LangGraph and its SQLite saver."""

import sqlite3
from typing import TypedDict

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph


class State(TypedDict):
    text: str


graph = StateGraph(State)
graph.add_node("hello", lambda state: {"text": "hello"})
graph.add_edge(START, "hello")
graph.add_edge("hello", END)
saver = SqliteSaver(sqlite3.connect("hello.db", check_same_thread=False))
app = graph.compile(checkpointer=saver)
print(app.invoke({"text": ""}, {"configurable": {"thread_id": "1"}}, durability="sync")["text"])
