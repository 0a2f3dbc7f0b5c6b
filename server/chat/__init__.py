"""Answers: prompts, sources, one module for each kind of chat."""
