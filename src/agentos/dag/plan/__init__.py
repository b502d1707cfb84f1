"""From a workflow to a plan. Nothing raises: every problem becomes a finding.

plan         a plan with its layers, and `compile_plan`
links        which values parameters get; tasks as written become complete definitions
checks       everything that can be wrong, as findings
findings     a problem, told so that it can be fixed
fingerprint  whether a task, with the code of its function, still is what it was
selection    some tasks of a plan, where not all are to run
task_changes single settings and arguments of tasks, set to other values
growth       tasks that come, change or go while a run is under way: items, rounds, injected ones
candidates   what a task becomes that several work on side by side
hints        what speaks against running a task twice
"""
