"""Programs of others that do the nearest thing: jobs whose workers are gone are found and put back to work.

Each script runs in an environment of its own, made by the benchmark, and imports nothing of the project.
"""
