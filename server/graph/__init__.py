"""The graph of a knowledge base: what its chunks say of which entities, and searches that follow it."""
