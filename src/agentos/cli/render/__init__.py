"""Things as text.

event_text      events, a line each
comparison_text where a workflow differs from the plan last accepted
event_json      events as JSON
value_text      values, inputs, usage
plan_drawing    plans as pictures
report          how a drive ended, and what to type next
text            text made fit for a terminal, and times
"""
