"""`agentos issue`: which briefs, one at a time or several.

choice  which briefs are meant
single  one brief in this terminal
batch   several at once, a process each
"""
