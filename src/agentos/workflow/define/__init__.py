"""From a file or a function to a plan that can be run.

workflow_source  finding workflows by path or by name
python_modules   importing the files they are defined in
python_tasks     functions that files name, and hints about all tasks
parameters       `--param name=value`
prompt_files     prompts that stand in files of their own
plans            plans, compiled, admitted and stored
run_secrets      secrets of a run
"""
