"""Things as text and pictures, the same on every surface.

event_text       events, a line each
event_json       events as JSON
value_text       values, parameters, usage, errors of tasks, changes of files
comparison_text  where a workflow differs from the plan last accepted
difference_text  what differs between two states
otlp             spans as OpenTelemetry's collectors read them
metrics_text     what a worker has counted, as Prometheus reads it
plan_graph       plans as Mermaid, and as boxes for a terminal
plan_columns     what of a plan is drawn: layers, with what is many folded
plan_svg         plans as SVG, for a page or a file
text             text made fit for people's eyes, and times
"""
