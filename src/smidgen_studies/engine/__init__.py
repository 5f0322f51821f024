"""The engine: studies, cells, their settings and their ledger."""
