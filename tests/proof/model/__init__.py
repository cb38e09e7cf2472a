"""An exhaustive small model over the real core: every interleaving of few processes, within small constants."""
