"""Things as text.

event_text       events, a line each
event_json       events as JSON
value_text       values, parameters, usage, errors of tasks, changes of files
comparison_text  where a workflow differs from the plan last accepted
plan_graph       plans as pictures
report           how a drive ended, and what to type next
text             text made fit for a terminal, and times
"""
