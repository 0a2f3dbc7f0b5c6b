"""Finding passages: keywords, fusion, relevance."""
