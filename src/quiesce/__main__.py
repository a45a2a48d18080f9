"""`python -m quiesce` is `quiesce`."""

import sys

from quiesce.cli.main import main

sys.exit(main())
