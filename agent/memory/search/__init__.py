"""Search the memory of a scope and the documents of projects: index, ranking, embeddings."""
