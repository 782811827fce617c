"""Makes the modules beside the tests importable: the independent reader, the golden logs' maker."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
