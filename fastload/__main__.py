"""`python -m fastload`: the same as the `fastload` command."""

import sys

if __name__ == "__main__":
    try:
        from fastload.cli.main import main

        sys.exit(main())
    except KeyboardInterrupt:  # while the command itself was being imported, or had ended
        sys.exit(130)
