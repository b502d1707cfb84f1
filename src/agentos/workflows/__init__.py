"""Workflows that come with AgentOS. They stand on what every user's workflow stands on, and nothing else."""
