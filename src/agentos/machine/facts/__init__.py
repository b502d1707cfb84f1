"""What is known of a run: made from its events alone.

facts          the value itself
fold           `reduce(facts, event)` and `fold(events)`
task_reducers  those of layers, tasks, gates and commands
"""
