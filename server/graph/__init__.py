"""Graphs of the entities that passages name, and of what connects them."""
