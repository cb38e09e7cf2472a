"""The benchmarks: every number a ratio to its floor, measured in one run (``python -m tests.bench``)."""
