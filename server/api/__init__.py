"""The HTTP edge: thin routes, schemas, server-sent events."""
