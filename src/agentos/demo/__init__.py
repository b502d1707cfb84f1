"""`agentos demo`: an agent is killed with SIGKILL in the middle of an edit, and goes on in its session.

story    the commands that are typed, and what has to be true of them
shop     the repository in which it happens, and its workflow
agent    the agent, scripted
"""
