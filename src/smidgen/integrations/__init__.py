"""Bridges to other libraries, imported by the command line and workflows only."""
