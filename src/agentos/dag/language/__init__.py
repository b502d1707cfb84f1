"""What stands inside the texts of a workflow. Reads text, runs nothing.

path_patterns     `src/**`: which paths are meant
references        `${{ tasks.build.output }}`: its words, found, checked, looked up
conditions        the grammar of `if` and `until`
yaml_document     YAML as plain data that remembers its lines
shell_words       the words of a shell command
shell_script      where references stand in a script
shell_references  how references reach a command without becoming code
"""
