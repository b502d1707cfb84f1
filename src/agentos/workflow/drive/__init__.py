"""One process makes a run go: it decides, writes down, and only then acts.

conductor         a drive from its first input to the end of its lease, which it renews
drive             the loop: inputs in, events written, work started
mailbox           what has arrived for the machine: results, commands, the time
attempts          the attempts under way, and what each may ask of its drive
attempt_specs     from a planned task to what its attempt is given
judge_material    what a judge of candidates is given to choose by
drive_files       files at the end of a layer, and those that an approval is about
journal           writing events, one commit for all that is ready; lines to a server
command_delivery  commands to a run, from any process, whether somebody drives it or not
event_stream      events as they happen, and again
logs              what attempts printed
log_writer        writing it, off the event loop
hooks             a command of the user's that is told how it ended
patience          waiting for what must not be left half done
result            what a drive leaves behind
"""
