"""The races play the same lives and the same services as the other tests, only many more of them."""

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
for folder in ("lifecycle", "supervisor"):
    if str(TESTS / folder) not in sys.path:
        sys.path.append(str(TESTS / folder))
