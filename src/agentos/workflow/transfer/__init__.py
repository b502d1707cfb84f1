"""A run from one place to another.

export_file  a run in one file
import_file  taking such a file in
run_copy     journal and snapshots, carried over
"""
