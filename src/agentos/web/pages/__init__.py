"""One module for each kind of page; each handler takes a request and gives a response.

run_list     all runs, and what waits for an answer
run          one run: graph, timeline, tasks, events
task_rows    its tasks as a table, what is many of a kind folded
task         one task's drawer
rail         checkpoints of a run: what changed between them; compare, restore, undo, fork
gates        open questions, with what they cover
going_on     resume with its plan first; pause, abort, rerun
actions      what forms ask for: sealed, checked, done, and told
"""
