"""Zhiku: files in, cited answers out."""
