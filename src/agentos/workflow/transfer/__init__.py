"""A run from one place to another.

export_file  a run in one file
run_copy     journal and snapshots, carried over and taken in
"""
