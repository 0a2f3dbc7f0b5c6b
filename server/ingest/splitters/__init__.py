"""From the blocks of a document to the passages that are indexed and cited."""
