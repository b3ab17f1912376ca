"""The nouns of the house: ids, segments, trajectories, events, commands, errors, configs.

Standard library and NumPy arrays as data; nothing here imports another part of the package.
"""
