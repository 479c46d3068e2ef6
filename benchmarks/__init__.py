"""Benchmarks: one file a scenario, the harness that they share, and one file a peer."""
