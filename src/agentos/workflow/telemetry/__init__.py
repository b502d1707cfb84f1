"""What a run did, as spans of OpenTelemetry.

trace_ids      the ids of traces and spans: digests, the same in every process
spans          a journal folded into spans; pure
trace_context  which span this code works for, for log lines and for spans that tasks make themselves
live_export    whether somebody wants spans while a run goes, and who sends them
exporter       sends them, through the OpenTelemetry SDK; in a process of its own, unless the program has set one up
"""
