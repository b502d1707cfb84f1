"""`agentos demo`: a run is killed with SIGKILL in the middle of a task, and resumed."""
