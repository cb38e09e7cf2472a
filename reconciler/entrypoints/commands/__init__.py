"""The verbs of the command line: made from the registry, with a room for each that needs more than it says."""
