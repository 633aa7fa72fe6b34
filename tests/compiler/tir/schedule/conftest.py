"""Makes the folder's programs and steps importable."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
