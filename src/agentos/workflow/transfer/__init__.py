"""A run from one place to another, and whole databases.

export_file      a run in one file
run_copy         journal and snapshots, carried over and taken in
database_backup  a database in one file, and put back from it
"""
