"""The floor everything stands on: files, checkpoints, guards, progress, memory, records."""
