"""One module for each comparison; see `benchmarks/README.md` for what a module has to offer."""
