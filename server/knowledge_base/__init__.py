"""Knowledge bases: the service, its factory, and one backend for each vector store."""
