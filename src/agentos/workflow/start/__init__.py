"""How a drive comes about: a new run, a fork, a resume, a worker.

new_run             from the start of a workflow
fork                from a checkpoint of another run
fork_worktree       a worktree for a fork
resume              gather what is known, plan, act
interrupted_agents  agents that were interrupted
lease_takeover      a lease whose holder may be dead elsewhere
leftovers           what dead drives leave behind
ready_run           a run that is ready, and how it is to be driven
worker              runs whose driver died, many at a time
backoff             when to try again
"""
