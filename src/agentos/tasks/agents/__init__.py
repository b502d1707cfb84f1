"""Agents: programs that work headless in the worktree.

performer   an attempt of one, and what it is told beside the prompt
assignment  what stays the same over its tries, the session to go on with, and its own account of it
watcher     follows it while it works
adapters    one module for each program
"""
