"""The data of the shipped studies."""
