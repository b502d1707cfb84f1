"""Remembering in SQL. Both stores answer one port and pass one contract suite.

port            what the engine asks of a store
backends        which stores there are, by how a database is named
codec           events to rows and back
journal_reader  reading a journal, every digest checked; rows to records; whole runs
run_lists       what lists show of a run beside its row
schedule_rows   schedules to rows and back
holder          who holds a lease, and whether it lives
private_files   files for the user alone, complete before anybody sees them
run_queue       runs that wait: how they were submitted, which go next
sqlfiles        the SQL beside this: queries, schema, migrations
stats           a database in numbers
call_book       who calls which model just now, across processes
graph_threads   LangGraph's threads: checkpoints that share what has not changed
edits           what makes one run of bytes of another
sqlite          one file beside the work
postgres        a server for a team
"""
