"""The pure core: values in, values out. No I/O, no clock, no randomness; ``now`` and jitter are arguments."""
