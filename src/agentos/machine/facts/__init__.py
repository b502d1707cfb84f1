"""What is known of a run: made from its events alone.

facts          the value itself
fold           `reduce(facts, event)` and `fold(events)`; what events of a run and its files do to the facts
task_reducers  what those do of layers, tasks, gates and commands
"""
