"""Embedding and chat models."""
