"""Embedding models turn texts into vectors, so that texts are found by meaning."""

from agentrt.embedding.base import EmbeddingModelBase, EmbeddingResponse, EmbeddingUsage, Vector
from agentrt.embedding.bedrock import BedrockEmbedding
from agentrt.embedding.gemini import GeminiEmbedding
from agentrt.embedding.openai import OpenAIEmbedding
from agentrt.embedding.wordllama import WordLlamaEmbedding

__all__ = [
    "BedrockEmbedding",
    "EmbeddingModelBase",
    "EmbeddingResponse",
    "EmbeddingUsage",
    "GeminiEmbedding",
    "OpenAIEmbedding",
    "Vector",
    "WordLlamaEmbedding",
]
