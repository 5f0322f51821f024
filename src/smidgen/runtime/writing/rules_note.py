"""The name of the file of rules, which a posterior's folder may hold."""

RULES_NOTE = "rules.json"
"""What a folder has whose posterior has rules to decide by."""
