"""`python -m rookery.cli`."""

import sys

from rookery.cli import main

sys.exit(main())
