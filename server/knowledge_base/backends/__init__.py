"""One module for each vector store."""
