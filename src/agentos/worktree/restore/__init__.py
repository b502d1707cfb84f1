"""Putting the files of a worktree back, so that a kill in the middle can be finished.

restore      the files as a snapshot has them
changes      what a restore would do
intent       what is about to be done, written down first
writes       writing by handles of folders, never through a link
safe_names   which paths may be written, and which are protected
git_state    HEAD, branch and index, on request
undo_points  what restores replaced
"""
