"""Snapshots: taken, kept, compared, thrown away.

snapshots            taking one, and what differs between two
store                the private store, and the worktree captured into it
index                one use of the private index, alone
capture              the index brought in line with the disk
survey               what lies in the worktree
known_files          what the last snapshot found out
trees                trees in the store
manifest             what a snapshot says about itself
ignore_rules         what was ignored when it was taken
nested_repositories  repositories inside the worktree
own_objects          objects that the user's gc may take away
budget               how much one may cost
bundles              snapshots in one file
retention            which ones stay
collection           giving space back
"""
