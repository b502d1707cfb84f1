"""One module for each agent's program.

adapter   what must be known of one, and what they share
usage_limits  what they say of a used up limit, and when it is over
known     those known by name, and which are installed
claude    Claude Code
codex     Codex
gemini    Gemini CLI
opencode  opencode
copilot   GitHub Copilot CLI
command   any other program
"""
