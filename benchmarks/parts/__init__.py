"""Programs that each measure one part of clog; see `benchmarks/README.md`."""
