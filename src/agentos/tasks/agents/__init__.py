"""Agents: programs that work headless in the worktree.

performer        an attempt of one
assignment       what stays the same over its tries, and the session to go on with
watcher          follows it while it works
adapters         one module for each program
"""
