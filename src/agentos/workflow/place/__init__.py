"""Which store, which worktree, which run is meant.

location          where state lives
place             a store and the worktree it belongs to
settings          settings of a repository
settings_file     the file they stand in
setting_kinds     what a setting may be
trust             whether the user trusts what settings reach
scope             whose runs a shared database shows here
worktree_index    worktrees of this machine that have runs
run_search        which run is meant
newest_run        the newest run of a kind
run_moves         runs resumed in another worktree
moved_files       runs whose files are elsewhere
inspection        questions about a database
damaged_database  one that is moved out of the way
"""
