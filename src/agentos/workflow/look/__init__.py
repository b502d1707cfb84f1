"""Looking at a run without touching it.

run_view     a run at one glance
explanation  why a task is as it is
state_diff   what differs between two states
file_diffs   what differs between the files of two moments
doctor       a look at everything a run depends on
"""
