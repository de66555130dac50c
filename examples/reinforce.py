"""Policy gradient (REINFORCE with a baseline) on a corridor: learn to walk right to the reward before time is up.

    python examples/reinforce.py                     # alone
    easgd launch -n 2 examples/reinforce.py          # two workers explore on their own, tied to one center

There is no data set: each worker plays its own episodes, since `attach` moves the random generators on. Workers whose
episodes last longer take fewer steps in the same time, and no one waits for them.
"""

import argparse

import torch
from torch import Tensor, nn

import easgd

parser = argparse.ArgumentParser()
parser.add_argument("--updates", type=int, default=300)
parser.add_argument("--episodes", type=int, default=16, help="played at once before each update")
parser.add_argument("--length", type=int, default=8)
parser.add_argument("--period", type=int, default=5)
args = parser.parse_args()


class Corridor:
    """Many walks at once from cell 0 to cell `length`; each step costs 0.1, the goal gives 1."""

    def __init__(self, walks: int, length: int) -> None:
        self.length, self.limit = length, 4 * length
        self.cell, self.time = torch.zeros(walks, dtype=torch.long), 0

    def observe(self) -> Tensor:
        return nn.functional.one_hot(self.cell, self.length + 1).float()

    def step(self, right: Tensor) -> tuple[Tensor, Tensor]:
        """Move; return the rewards and which walks were still under way before."""
        walking = self.cell < self.length
        self.cell = torch.where(walking, (self.cell + 2 * right - 1).clamp(min=0), self.cell)
        self.time += 1
        return walking * ((self.cell == self.length).float() - 0.1), walking

    @property
    def over(self) -> bool:
        return self.time == self.limit or bool((self.cell == self.length).all())


def play(policy: nn.Module, episodes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return log-probabilities, rewards and the mask of walks under way, each [time, episodes]."""
    corridor, history = Corridor(episodes, args.length), []
    while not corridor.over:
        chosen = torch.distributions.Categorical(logits=policy(corridor.observe()))
        action = chosen.sample()
        history.append((chosen.log_prob(action), *corridor.step(action)))
    logs, rewards, walking = zip(*history, strict=True)
    return torch.stack(logs), torch.stack(rewards), torch.stack(walking)


torch.manual_seed(0)
torch.set_num_threads(1)
policy = nn.Sequential(nn.Linear(args.length + 1, 32), nn.Tanh(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(policy.parameters(), lr=0.01)
worker = easgd.attach(policy, optimizer, easgd.EASGD(period=args.period))

for _ in range(args.updates):
    logs, rewards, walking = play(policy, args.episodes)
    returns = rewards.flip(0).cumsum(0).flip(0)
    advantage = (returns - returns.mean(1, keepdim=True)) * walking
    loss = -(logs * advantage).sum(0).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

if worker.rank == 0:
    policy.load_state_dict(worker.center())
    with torch.no_grad():
        mean = play(policy.eval(), 200)[1].sum(0).mean().item()
    print(f"mean return of the center's policy: {mean:.2f} (best {1 - 0.1 * args.length:.2f})")
