"""What a drive does about the files of its worktree.

worktree_files   captured, put back; a worktree for each isolated attempt
captures         around attempts that change files
decisions        what becomes of them, as far as the journal tells
restore          putting back by hand, and undoing that
source_files     what tasks depend on, and whether it is what it was
retention        snapshots that are no longer needed
"""
