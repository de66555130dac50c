"""Train a small GPT at character level on the text of Python's own manual, in the style of nanoGPT's train.py.

    python examples/char_gpt.py                      # alone
    easgd launch -n 2 examples/char_gpt.py           # two workers, one center

Lines marked `# easgd` are the whole difference to the script without it. Nothing is downloaded.
"""

import argparse
import math
import pydoc_data.topics

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import easgd  # easgd

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=2000)
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--block-size", type=int, default=64)
parser.add_argument("--layers", type=int, default=4)
parser.add_argument("--heads", type=int, default=4)
parser.add_argument("--width", type=int, default=128)
parser.add_argument("--lr", type=float, default=1e-3)
parser.add_argument("--eval-interval", type=int, default=250)
parser.add_argument("--period", type=int, default=10)  # easgd
args = parser.parse_args()

# data ----------------------------------------------------------------------------------------------------------

text = "\n".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics))
characters = sorted(set(text))
encode = {c: i for i, c in enumerate(characters)}
data = torch.tensor([encode[c] for c in text])
cut = int(0.9 * len(data))
split = {"train": data[:cut], "val": data[cut:]}


def get_batch(which: str, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    source, n = split[which], args.block_size
    at = torch.randint(len(source) - n, (args.batch_size,), generator=generator)
    return torch.stack([source[i : i + n] for i in at]), torch.stack([source[i + 1 : i + 1 + n] for i in at])


# model ---------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.shape
        q, k, v = (h.view(B, T, self.heads, -1).transpose(1, 2) for h in self.qkv(self.norm1(x)).split(C, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(B, T, C))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, vocabulary: int, block: int, layers: int, heads: int, width: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(block, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.apply(self._initialise)
        self.head.weight = self.tokens.weight  # tied

    @staticmethod
    def _initialise(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        logits = self.head(self.norm(self.blocks(x)))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


torch.manual_seed(0)
model = GPT(len(characters), args.block_size, args.layers, args.heads, args.width)
decay = [p for p in model.parameters() if p.dim() >= 2]
others = [p for p in model.parameters() if p.dim() < 2]
optimizer = torch.optim.AdamW(
    [{"params": decay}, {"params": others, "weight_decay": 0.0}], lr=args.lr, weight_decay=0.1
)

worker = easgd.attach(model, optimizer, easgd.EASGD(period=args.period))  # easgd
draw = torch.Generator().manual_seed(worker.rank)  # easgd: each worker draws its own batches
center = GPT(len(characters), args.block_size, args.layers, args.heads, args.width).eval()  # easgd

# training ------------------------------------------------------------------------------------------------------


@torch.no_grad()
def validation_loss() -> float:
    center.load_state_dict(worker.center())  # easgd
    same = torch.Generator().manual_seed(1)
    return sum(center(*get_batch("val", same)).item() for _ in range(10)) / 10


def learning_rate(step: int) -> float:
    warmup = min(100, args.steps // 10 + 1)
    if step < warmup:
        return args.lr * (step + 1) / warmup
    return args.lr * (0.1 + 0.45 * (1 + math.cos(math.pi * (step - warmup) / max(1, args.steps - warmup))))


for step in range(args.steps + 1):
    if step % args.eval_interval == 0 or step == args.steps:
        if worker.rank == 0:  # easgd
            print(f"step {step}: loss of the center {validation_loss():.4f}", flush=True)
        if step == args.steps:
            break
    for group in optimizer.param_groups:
        group["lr"] = learning_rate(step)
    loss = model(*get_batch("train", draw))
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
