"""Workflows as data: the language they are written in, how one is defined, and the plan it is compiled to. Pure.

language  what stands inside texts: references, conditions, YAML, shell scripts
define    a workflow as its author writes it, in Python or in a file
plan      the workflow compiled: checked, layered, fingerprinted
"""
