"""Completion in the shell, from a list of all options that needs no import of the commands."""
