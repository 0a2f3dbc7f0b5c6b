"""One module for each family of file formats: bytes in, blocks of text out."""
