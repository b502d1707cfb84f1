"""The program `agentos`: parse, call the client, print."""
