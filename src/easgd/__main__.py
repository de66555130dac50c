"""`python -m easgd` is `easgd`."""

import sys

from easgd.cli import main

if __name__ == "__main__":
    sys.exit(main())
