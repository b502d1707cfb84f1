"""A store on a PostgreSQL server, with or without a pooler before it.

database        opening one: reachable, ours, of a known schema
address         a URL, taken apart
store           the verbs of the port
driver          lost connections, waiting, errors of psycopg and why a server refuses
pool            the connections of this process, and statements with their schema written in
journal_writer  appending a batch of events, as one statement; lines for event loops
leases          who may drive a run
notices         news from the server, and which runs a store looks at
migrations      from nothing or an older schema to this one
stats           what a schema holds
copies          how a schema is copied and put back, by the tools of PostgreSQL
graph_threads   LangGraph's threads: what is one transaction here
"""
