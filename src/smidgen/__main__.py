"""`python -m smidgen` is the command line."""

from smidgen.cli import main

main()
