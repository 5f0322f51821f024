"""How values and progress look in a notebook."""
