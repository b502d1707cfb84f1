"""One module for each agent's program.

adapter   what must be known of one
known     those known by name
trouble   what a status or a text means
claude    Claude Code
codex     Codex
gemini    Gemini CLI
opencode  opencode
copilot   GitHub Copilot CLI
command   any other program
"""
