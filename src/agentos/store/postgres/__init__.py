"""A store on a PostgreSQL server, with or without a pooler before it.

database        opening one: reachable, ours, of a known schema
address         a URL, taken apart
store           the verbs of the port
driver          lost connections, waiting, errors of psycopg
refusals        why there is no connection
pool            the connections of this process, and statements with their schema written in
session         named queries on one connection
journal_writer  appending a batch of events, as one statement
line            appending from the event loop
leases          who may drive a run
notices         news from the server, and which runs a store looks at
migrations      from nothing or an older schema to this one
stats           what a schema holds
"""
