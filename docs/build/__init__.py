"""Scripts that write the README's tables, the docs' tables and the pictures from records."""
