"""The issue workflow: a rough brief becomes a reviewed, filed issue.

| module | what it says |
|---|---|
| `flow` | the tasks, and what needs what; `agentos graph RUN` draws it |
| `steps` | what the tasks do that call nobody: prompts, artefacts, verdicts, what follows from them |
| `roles`, `programs` | who drafts and who reviews; the contract with a program in that role |
| `verdicts` | what a reviewer may say, and what is read from anything else: nothing |
| `filing` | an issue is looked for before it is created, with `gh` or a program |
| `lineage` | the numbered files that people read |
| `briefs` | what a brief is called, and which run is its own |
| `prompts` | what drafter and reviewer are told |
"""
