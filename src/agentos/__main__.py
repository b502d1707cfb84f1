"""`python -m agentos` is the program `agentos`."""

import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:
        # `python -m` puts the current directory first, and a module in a clone would stand in for one that we need.
        del sys.path[0]
    from agentos.cli.main import main

    main()
