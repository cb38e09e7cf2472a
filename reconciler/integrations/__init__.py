"""Sessions for agent frameworks, each an optional extra: they use the Runner API, and nothing uses them.

Importing this package imports no framework; importing one of its front doors (`openai_agents`) does.
"""
