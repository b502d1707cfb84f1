"""Workflows that come with AgentOS. They stand on what every user's workflow stands on, and nothing else.

issue       a rough brief becomes a reviewed, filed issue
agent_task  one task for one agent, as it is typed
"""
