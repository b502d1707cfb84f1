"""What is shown while a run goes: a model folded from events, and four ways to show it."""
