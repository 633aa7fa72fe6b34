"""tunefarm: an autotuning service with a measurement farm."""

__version__ = "0.1.0"
