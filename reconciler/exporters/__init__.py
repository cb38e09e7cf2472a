"""Exporters: stored entries in, lines of a session file out. They know nothing of databases, clocks or files."""
