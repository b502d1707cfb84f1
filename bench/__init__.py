"""Measures AgentOS against what it stands on and against its peers, on the same work. `python -m bench --help`."""
