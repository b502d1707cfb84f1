"""How a drive comes about: a new run, a fork, a resume, a worker.

new_run         from the start of a workflow, or from a checkpoint of another run
submission      a run that a worker is to take
own_worktree    the commit and files that a submitted run works on
fork_worktree   a worktree for a fork
resume          gather what is known, plan, act
comparison      where the workflow differs from the plan last accepted
lease_takeover  the lease of a driver that may be dead, and what it left at work
leftovers       what dead drives leave behind
ready_run       a run that is ready, and how it is to be driven
schedules       workflows that run by themselves: added, removed, their slots fired
worker          runs whose driver died, many at a time, and when to try again
worker_figures  what a worker counts meanwhile
"""
