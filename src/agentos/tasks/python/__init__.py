"""Functions as tasks.

performer  on the loop, or in a thread
functions  finding one, and calling it with its types
steps      durable steps inside one
isolated   in a child interpreter
child      the child's side of that
threads    daemon threads for what cannot be cancelled
stdout     what a function prints
"""
