"""Snapshots: taken, kept, compared, thrown away.

snapshots    taking one, and what differs between two; ignore rules of its moment; objects of our own
store        the private store, the worktree captured into it, and its private index
capture      the index brought in line with the disk, and how much that may cost
pack_writer  many changed files in one pack, ahead of git
survey       what lies in the worktree, repositories inside it included
known_files  what the last snapshot found out
trees        trees in the store
manifest     what a snapshot says about itself
bundles      snapshots in one file
retention    which ones stay, and giving space back
"""
