"""What follows from what: functions over a board, one matter each.

drives        how a drive begins, and how it ends: with one terminal event
task_start    skip a task, ask about it, or start it; fan-outs; `repeat` and its rounds
scope         what the references of a task can see, and whether it is to run
attempts      what follows when an attempt is over
steps         sleeps, waits and steps inside a function: its task is suspended, and goes on
layers        a checkpoint after each finished layer
verification  by what the tasks before a gate were verified
gates         names of gates, and when one lets through; files that a command names
budgets       what models may cost
requests      commands, applied or refused
plan_changes  changes of the plan, applied again
files         snapshots, as far as a run knows them; files that an approval is about
candidates    who wins where several worked on a task, and the table of them
merges        what isolated tasks did to files
"""
