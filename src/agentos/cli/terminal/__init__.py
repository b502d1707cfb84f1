"""One drive in this terminal: shown, asked about, stopped.

session      show it, ask at its gates, say how it ended
frame        one picture of fixed height
live         the live view
feed         feeding a view from a stream; the view of plain lines
gate_prompt  gates at the terminal, and the dialogue there
report       how a drive ended, and what to type next
"""
