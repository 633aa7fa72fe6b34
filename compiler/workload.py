"""Workloads and tasks: what is tuned, in a form that is equal in every process.

(The canonical form is defined here; ``compiler/extract.py`` finds the tasks of a model.)
"""
