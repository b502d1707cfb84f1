"""`python -m agentos` is the program `agentos`."""

from agentos.cli.main import main

if __name__ == "__main__":
    main()
