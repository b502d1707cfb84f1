"""What is known of a run: made from its events alone.

facts          the value itself
fold           `reduce(facts, event)` and `fold(events)`
reducers       one reducer for each event of a run
task_reducers  those of layers and tasks
gate_reducers  those of gates and commands
invariants     what holds after every event
saved_states   states that a CheckpointManager saves by itself
"""
