"""Chaos: nine cells of stress over separate processes, with ledgers outside the database and a verdict line by line."""
