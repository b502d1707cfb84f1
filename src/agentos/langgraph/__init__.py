"""LangGraph's state in AgentOS's database: `AgentosSaver` in the place of another checkpoint saver.

saver   the saver, and the same opened from an event loop

It needs the extra `langgraph`, and stands on the client alone, as the program and the page do.
"""

from agentos.langgraph.saver import AgentosSaver, AsyncAgentosSaver

__all__ = ["AgentosSaver", "AsyncAgentosSaver"]
