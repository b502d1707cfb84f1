"""What a run is: a pure machine. Given plan, facts, an input and the time, it says which events follow.

events         what happened: the journal is a list of these
commands       what may be asked of a run
inputs         what reaches the machine from outside, results of attempts among it
state          the state of a run as users see it
facts          what is known of a run, folded from its events
machine        takes an input in, gives events back
board          plan, facts and frontier together; `emit` is the only way to change them
frontier       which tasks can go next
rules          what follows from what, one matter a module
signed_text    what the signature of an answer is over
sources        whether what a task depends on is still what it was
slots          what becomes of the due slots of a schedule: fired, waiting, passed
resume         what a resume keeps, repeats and asks: a verdict for each task
"""
