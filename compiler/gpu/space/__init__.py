"""The sketches of GPUs. Their table is that of all sketches, ``compiler/space/registry.py``."""

import tunefarm.compiler.space  # noqa: F401  # first, since its table imports the sketches here
