"""The files of a worktree, remembered in git beside the user's own history.

git                git as argv to bytes
repository_layout  what git's answers depend on, so that it is not asked again and again
snapshots          the files as commits in a private store
restore            putting files back
hunks              what several sides did to one text
merge              what isolated tasks did to the same files
linked_worktrees   a worktree of its own for isolated work
"""
