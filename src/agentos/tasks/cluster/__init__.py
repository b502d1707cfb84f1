"""Attempts on an existing Dask cluster: the driver hands them over, a worker performs each in a child process.

cluster_settings  which scheduler, and how it is reached
wire              what goes to a worker and comes back, in our own encoding
dask_runner       the driver's side: a `Runner` like the local one
link              one connection to a scheduler, on a thread of its own: leases renewed, losses noticed
stale             attempts of a driver that died: ended, or waited for
worker            a worker's side: children, their leases, what they print
child             the process in which an attempt is performed
local_cluster     a cluster on this machine, to try it out
"""
