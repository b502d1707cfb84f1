"""Runs that are not driven at once.

submission   submit a run for a worker to take, and wait for its end
schedules    workflows that run by themselves: added, listed, removed
"""
