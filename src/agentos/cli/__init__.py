"""The program `agentos`: parse, call, print.

main              the table of commands
boundary          exit codes, and where errors become text
options           options that commands share
drive_flags       options of commands that drive a run
output            what is printed: data to stdout, messages to stderr
shell_completion  what the shell offers after TAB
json_shapes       the shape of what `--json` prints
commands          one file for each command
render            things as text
terminal          one drive in this terminal
issue             the issue workflow's own commands
"""
