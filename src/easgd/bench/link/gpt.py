"""A small GPT at character level, and the text that it learns: Python's own manual, which every installation has."""

from __future__ import annotations

import functools
import pydoc_data.topics

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """Attention and perceptron, each on a normalized input and added to it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.perceptron = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).split(width, dim=2)
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.perceptron(self.norm2(x))  # type: ignore[no-any-return]


class GPT(nn.Module):
    """Return the logits of every next character."""

    def __init__(self, vocabulary: int, block: int, layers: int, heads: int, width: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(block, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        return self.head(self.norm(self.blocks(x)))  # type: ignore[no-any-return]


@functools.cache
def text() -> tuple[Tensor, Tensor, int]:
    """Return the characters to train on, those to validate on, and how many different ones there are."""
    topics: dict[str, str] = pydoc_data.topics.topics
    whole = "\n".join(topics[name] for name in sorted(topics))
    code = {character: i for i, character in enumerate(sorted(set(whole)))}
    data = torch.tensor([code[character] for character in whole])
    cut = int(0.9 * len(data))
    return data[:cut], data[cut:], len(code)


def draw(source: Tensor, count: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return `count` random stretches of a text, and the same one character on."""
    at = torch.randint(len(source) - length, (count,), generator=generator).tolist()
    return torch.stack([source[i : i + length] for i in at]), torch.stack([source[i + 1 : i + 1 + length] for i in at])
