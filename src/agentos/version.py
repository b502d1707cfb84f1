"""Which AgentOS this is: leases and exports say it, and so does `agentos --version`."""

VERSION = "0.1.0"
