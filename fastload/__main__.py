"""`python -m fastload`: the same as the `fastload` command."""

import sys

from fastload.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
