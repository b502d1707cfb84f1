"""Remembering in SQL. Both stores answer one port and pass one contract suite.

port            what the engine asks of a store
backends        which stores there are, by how a database is named
codec           events to rows and back
journal_reader  reading a journal, every digest checked; rows to records; whole runs
holder          who holds a lease, and whether it lives
private_files   files for the user alone, complete before anybody sees them
sqlfiles        the SQL beside this: queries, schema, migrations
stats           a database in numbers
call_book       who calls which model just now, across processes
sqlite          one file beside the work
postgres        a server for a team
"""
