"""A store in one file, shared by the processes of a machine.

database    opening one: is it ours, whole, writable, of a known schema
store       the verbs of the port
driver      transactions, waiting for locks, errors of sqlite3
live        a connection and its files, which somebody may remove or replace
locks       locks that nothing else in this process can drop
leases      who may drive a run
migrations  from nothing or an older schema to this one
stats       what a database holds
copies      a whole database copied, looked through, and put in another's place
graph_threads  LangGraph's threads: what is one transaction here
"""
