"""Runs that nobody needs any more: which those are, and how they go.

rules          how old runs of a status may become, and how many stay whatever their age
expired_runs   which runs that means, and what they take
deletion_note  what is to be deleted, written down, so that one that was killed is brought to its end
run_deletion   deleting runs with all they have, in batches; and pruning checkpoints of many
sweep          the setting `retention`, carried out by a worker
"""
