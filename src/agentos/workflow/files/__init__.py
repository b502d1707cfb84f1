"""What a drive does about the files of its worktree.

worktree_files  captured, put back; a worktree for each isolated attempt
captures        around attempts that change files; merging what isolated ones did
decisions       what becomes of files and of interrupted agents, as far as the journal tells
restore         putting back by hand, undoing that, and what a resume would put back
source_files    what tasks depend on, and whether it is what it was
retention       snapshots that are no longer needed
thread_files    snapshots for checkpoints of LangGraph
"""
