"""What follows from what: functions over a board, one matter each.

drive_start   how a drive begins
task_start    skip a task, ask about it, or start it; `repeat` and its rounds
needs         whether a task whose needs have ended is to run
scope         what the references of a task can see
attempts      what follows when an attempt is over
fanout        a `for_each` task becomes one for each item
layers        a checkpoint after each finished layer
gates         names of gates, and when one lets through
covers        files that an approval is about
budgets       what models may cost
requests      commands, applied or refused
plan_changes  changes of the plan, applied again
files         snapshots, as far as a run knows them
merges        what isolated tasks did to files
drive_end     how a drive ends: with one terminal event
"""
