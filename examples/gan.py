"""A GAN on a ring of eight Gaussians: two models with an optimizer each, and one center for each.

    python examples/gan.py                           # alone
    easgd launch -n 2 examples/gan.py                # two workers, two centers

`name` tells the centers apart: the generators are tied to one, the discriminators to another. Each worker draws samples
of its own: `attach` moves the random generators on.
"""

import argparse
import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import easgd

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=3000)
parser.add_argument("--batch-size", type=int, default=128)
parser.add_argument("--period", type=int, default=10)
args = parser.parse_args()


def mlp(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, outputs)
    )


def real(n: int) -> Tensor:
    angle = torch.randint(8, (n,)) * (math.pi / 4)
    return torch.stack([angle.cos(), angle.sin()], dim=1) + 0.05 * torch.randn(n, 2)


torch.manual_seed(0)
torch.set_num_threads(1)
generator, discriminator = mlp(8, 2), mlp(2, 1)
move_generator = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
move_discriminator = torch.optim.Adam(discriminator.parameters(), lr=1e-3, betas=(0.5, 0.999))

method = easgd.EASGD(period=args.period)
worker = easgd.attach(generator, move_generator, method, name="generator")
easgd.attach(discriminator, move_discriminator, method, name="discriminator")

for _ in range(args.steps):
    fake = generator(torch.randn(args.batch_size, 8))
    loss = F.softplus(-discriminator(real(args.batch_size))).mean() + F.softplus(discriminator(fake.detach())).mean()
    move_discriminator.zero_grad()
    loss.backward()
    move_discriminator.step()

    loss = F.softplus(-discriminator(fake)).mean()
    move_generator.zero_grad()
    loss.backward()
    move_generator.step()

if worker.rank == 0:
    generator.load_state_dict(worker.center())
    with torch.no_grad():
        radius = generator.eval()(torch.randn(1000, 8)).norm(dim=1)
    print(f"radius of the center's samples: {radius.mean():.2f} ± {radius.std():.2f} (the ring's is 1)")
