"""What is known of a run: made from its events alone.

facts          the value itself
fold           `reduce(facts, event)` and `fold(events)`
reducers       what each event does to the facts; those of a run and its files
task_reducers  those of layers, tasks, gates and commands
"""
