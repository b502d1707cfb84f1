"""Children of an attempt: each with everything it started.

launch          what is started, where, with which environment
spawn           children that wait until their start is durable
supervision     one child, seen through
output_capture  what it prints, within bounds
exit_texts      how it ended, in words
termination     ended with everything it started
orphans         processes that outlived their attempt
adoption        orphans stay below their driver
ancestors       who is behind a call
private_folder  a folder for the files of an attempt
"""
