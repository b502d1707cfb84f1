"""One drive in this terminal: shown, asked about, stopped.

session            show it, ask at its gates, say how it ended
model              what there is to show
words              what happened, in one line
frame              one picture of fixed height
live               the live view
plain              plain lines
jsonlines          JSON lines
feed               feeding a view from a stream
earlier_durations  how long tasks took before
gate_prompt        gates at the terminal
dialogue           the dialogue at one
answers            what approve, reject, pause and send share
file_choice        what to do with files of an interrupted task
stop_signals       Ctrl-C, SIGTERM, a closed terminal
shield             secrets kept out of what is printed
"""
