"""The program `agentos`: parse, call, print.

main              the table of commands
boundary          exit codes, and where errors become text
options           options that commands share
drive_flags       options of commands that drive a run
answer_signature  signatures of answers: the options, and the signature they ask for
output            what is printed: data to stdout, messages to stderr
output_file       files that commands write, whole or not at all
shell_completion  what the shell offers after TAB
worker_unit       what `worker install` does
systemd_unit      a systemd unit: its text and its place
json_shapes       the shape of what `--json` prints
commands          one file for each command
terminal          one drive in this terminal
issue             the issue workflow's own commands
"""
