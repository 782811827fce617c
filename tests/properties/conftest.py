"""Makes the module beside the tests importable that forges row groups."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
