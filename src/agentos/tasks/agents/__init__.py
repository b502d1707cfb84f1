"""Agents: programs that work headless in the worktree.

performer        an attempt of one
assignment       what stays the same over its tries
earlier_session  the session that an interrupted attempt left
watcher          follows it while it works
texts            what agents are told
log_entries      what its log holds
transcript       its own account, copied
installed        which agents this machine has
adapters         one module for each program
"""
