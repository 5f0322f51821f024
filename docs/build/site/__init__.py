"""The documentation site: `python -m docs.build.site` writes it to `build/site`."""
