"""Vectors of texts: a local model by path, a provider through litellm, or none (`open_embedder`)."""

from agent.memory.search.embedding.embedder import Embedder as Embedder
from agent.memory.search.embedding.embedder import Matrix as Matrix
from agent.memory.search.embedding.factory import open_embedder as open_embedder
from agent.memory.search.embedding.guarded_embedder import GuardedEmbedder as GuardedEmbedder
