"""`python -m gristmill`."""

from __future__ import annotations

import sys

from gristmill.cli import main

if __name__ == "__main__":
    sys.exit(main())
