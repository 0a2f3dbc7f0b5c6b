"""From a file to chunks: jobs, loaders, splitters."""
