"""A GPT at character level, as small as a benchmark on a CPU needs it, and a text that every Python brings along."""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


class Block(nn.Module):
    """Causal self-attention and a two-layer perceptron, each behind its own layer norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).split(width, dim=2)
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(batch, length, width))
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


class GPT(nn.Module):
    """Returns the logits of the next character at every place.

    >>> GPT(vocabulary=65)(torch.zeros(2, 16, dtype=torch.long)).shape
    torch.Size([2, 16, 65])
    """

    def __init__(self, vocabulary: int, block: int = 64, layers: int = 4, heads: int = 4, width: int = 128) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(block, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        logits: Tensor = self.head(self.norm(self.blocks(x)))
        return logits


def next_character_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Mean cross-entropy in nats a character."""
    tokens, targets = batch
    return F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())


@functools.cache
def text() -> tuple[Tensor, Tensor, int]:
    """Return the text of Python's manual as numbers, for training and for validation, and its alphabet's size."""
    import pydoc_data.topics as manual

    characters = "\n".join(manual.topics[name] for name in sorted(manual.topics))
    number = {c: i for i, c in enumerate(sorted(set(characters)))}
    data = torch.tensor([number[c] for c in characters])
    cut = len(data) * 9 // 10
    return data[:cut], data[cut:], len(number)


def draw(source: Tensor, count: int, block: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return `count` random windows of a text, and what follows each of their characters."""
    starts = torch.randint(len(source) - block, (count,), generator=generator)
    at = starts[:, None] + torch.arange(block)
    return source[at], source[at + 1]
