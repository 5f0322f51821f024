"""A small HTTP service for whatever answers rows; it needs the extra `serve`.

Nothing here knows how answers are made: what computes them is handed over.
"""
