"""Tools for other agents, over the Model Context Protocol: start runs, see why one failed, mend it, go on.

server   one server over stdio: its tools, its errors; it counts as an agent
reads    tools that only look
actions  tools that begin runs, go on with them, and stop them
answers  what tools give: JSON, masked, and short
"""
