"""Whether tasks may be repeated, tried in a scratch worktree.

proof             each task run three times
run_comparison    what differs between the runs
scratch_worktree  a place to try things
"""
