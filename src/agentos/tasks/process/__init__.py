"""Children of an attempt: each with everything it started.

launch            what is started: where, with which environment and private folder
supervision       one child: it waits for leave, is seen through, ended with everything it started
output_capture    what it prints, within bounds
sandbox           a wall around one, where its task asks for it
sandbox_settings  what the settings say about that
orphans           processes that outlived their attempt
ancestors         who is behind a call, and orphans that stay below their driver
"""
