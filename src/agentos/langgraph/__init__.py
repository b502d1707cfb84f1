"""LangGraph's state in AgentOS's database: `AgentosSaver` in the place of another checkpoint saver.

saver   the saver, and the same opened from an event loop

It needs the extra `langgraph`, and stands on the client alone, as the program and the page do.
"""

from agentos.extras import install_command

try:
    from agentos.langgraph.saver import AgentosSaver, AsyncAgentosSaver
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "langgraph":
        raise
    raise ImportError(f"LangGraph is not installed. Install it with `{install_command('langgraph')}`.") from error

__all__ = ["AgentosSaver", "AsyncAgentosSaver"]
