"""Studies: an engine that runs many cells, and the experiments of three papers."""
