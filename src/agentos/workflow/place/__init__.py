"""Which store, which worktree, which run is meant.

location        where state lives
place           a store, the worktree it belongs to, whose runs it shows
settings        settings of a repository: file and variables
setting_kinds   what a setting may be
trust           whether the user trusts what settings reach
worktree_index  worktrees of this machine that have runs
schedule_owners which worktree of a repository owns a schedule
signatures      who may sign answers; signatures made and verified
run_search      which run is meant
origin          the commit and files that a run was submitted with
run_moves       runs resumed in another worktree, or without their files
inspection      questions about a database; a damaged one moved out of the way
"""
