"""``python -m tunefarm``: the command line."""

from tunefarm.cli import main

main()
