"""What the saver for LangGraph asks.

threads  where its threads are kept, and the files of the worktree that belong to a checkpoint
"""
