"""Looking at a run without touching it.

run_view      a run at one glance
run_model     the same while it goes on, event by event
timeline      when it did what
explanation   why a task is as it is
agent_lines   what agents printed, as people read it
diffs         what differs between two moments, in state and files
gate_context  what to know to decide at a gate
attempt_evidence  what tells whether an interrupted task took effect
doctor        a look at everything a run depends on
"""
