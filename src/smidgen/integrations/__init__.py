"""Bridges to other libraries, imported only by the command line and the story."""
