"""A workflow as its author writes it, and its tasks as data.

workflow       `Workflow`: what authors build; tasks as written
task           a task as data, and stored values in it
limits         what a value may be beside its type
settings       the settings of a task: one table
readers        what people write for a setting, turned into what is kept
run_settings   settings and parameters of a whole run, as declared and as given
cron           when a workflow runs by itself: the setting, and the slots it means
model_calls    agents and model calls as data, and their budgets
mapping        tasks in the mapping form of files and commands
yaml_file      workflows written as YAML
schema         the JSON Schema of such files, for editors
"""
