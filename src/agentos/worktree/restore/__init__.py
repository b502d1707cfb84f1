"""Putting the files of a worktree back, so that a kill in the middle can be finished.

restore      the files as a snapshot has them
intent       what is about to be done, written down first
writes       writing by handles of folders, never through a link
safe_names   which paths may be written
protection   paths that must not be touched
git_state    HEAD, branch and index, on request
undo_points  what restores replaced
"""
