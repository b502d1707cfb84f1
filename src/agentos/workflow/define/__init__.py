"""From a file or a function to a plan that can be run.

workflow_source  finding workflows by path or by name
python_modules   importing the files they are defined in
python_tasks     functions that files name
parameters       `--param name=value`
plans            plans, compiled and stored
task_hints       hints for every task of a plan
products         paths that must be there for a task to be reused
run_secrets      secrets of a run
labels           labels of a run
model_keys       keys that are not set
prices           budgets in dollars need prices
"""
