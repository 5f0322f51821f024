"""Studies: runs whose records are committed under results/."""
