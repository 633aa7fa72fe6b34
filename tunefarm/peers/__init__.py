"""Ours beside other libraries: each alone in a process of its own, timed in turn."""
