"""Performing one attempt of a task, whatever its kind.

attempt   what an attempt is given, and what it gives back
runner    where attempts are performed, found and ended, and by which performer
context   what a function gets as `ctx`
outcomes  from what an attempt did to its outcome
failures  errors as data
masking   where secrets stay behind
shell     shell tasks
python    functions, here or in a child process
process   children: started, watched, ended
agents    agents at work in the worktree
llm       calls of a model
cluster   attempts on an existing Dask cluster
"""
