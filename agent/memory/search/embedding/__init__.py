"""Vectors of texts: a local model by path, a provider through litellm, or none (`open_embedder`)."""

from agent.memory.search.embedding.guarded import GuardedEmbedder as GuardedEmbedder
from agent.memory.search.embedding.opening import open_embedder as open_embedder
from agent.memory.search.embedding.port import Embedder as Embedder
from agent.memory.search.embedding.port import Matrix as Matrix
