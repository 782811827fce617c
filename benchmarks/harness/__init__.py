"""What all benchmarks share: data, rounds, results, environments, tables and plots."""
