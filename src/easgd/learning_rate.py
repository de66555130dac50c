"""Learning-rate schedules of the paper, for torch's own schedulers."""

from __future__ import annotations

from typing import Any

import torch

from easgd.errors import refuse


class decay:  # noqa: N801 - used like a function: LambdaLR(optimizer, decay(gamma))
    """η_t = η/(1 + γt)^0.5 on each worker's own clock (supplement, "Dependence of the communication period").

    With `warmup` the rate rises to that in equal steps first: η/N at the first of N steps, η at the last of them. With
    `drop` it is a tenth of that after N steps. Neither is in the paper. γ = 0 leaves the rate alone otherwise.

    Example:
        >>> import torch, easgd
        >>> optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.1)
        >>> scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, easgd.decay(gamma=3.0))
        >>> optimizer.step(); scheduler.step()
        >>> scheduler.get_last_lr()
        [0.05]
    """

    def __init__(self, gamma: float, warmup: int = 0, drop: int | None = None) -> None:
        if not 0 <= gamma < float("inf"):
            raise refuse("gamma", gamma, "the decay γ is finite and not negative", "write gamma=1e-4")
        if warmup < 0:
            raise refuse("warmup", warmup, "it is a number of steps", "write warmup=100, or leave it out")
        if drop is not None and drop <= warmup:
            remedy = f"write drop={2 * warmup or 1000}, or leave it out"
            raise refuse("drop", drop, f"the rate falls after its warm-up of {warmup} steps", remedy)
        self.gamma, self.warmup, self.drop = gamma, warmup, drop

    def __call__(self, t: int) -> float:
        """Return the factor of step t, counted from 0."""
        rise = (t + 1) / self.warmup if t < self.warmup else 1.0
        fall = 0.1 if self.drop is not None and t >= self.drop else 1.0
        return float(rise * fall * (1 + self.gamma * t) ** -0.5)


def full_rate(optimizer: torch.optim.Optimizer) -> float:
    """Return η without a scheduler's warm-up or decay, as far as it is written in the first parameter group."""
    group = optimizer.param_groups[0]
    return max(float(group[name]) for name in ("lr", "initial_lr", "max_lr") if name in group)


def first_drop(scheduler: Any, loss: float | None) -> bool:
    """Tell a scheduler that wants it the loss of a step; return whether that made the rate drop for the first time."""
    if loss is None or not hasattr(scheduler, "observe"):
        return False
    before = getattr(scheduler, "drops", None)  # a user's own scheduler may have none
    scheduler.observe(loss)
    return before == 0 != getattr(scheduler, "drops", 0)


class Stagnation(torch.optim.lr_scheduler.LRScheduler):
    """η/5, then half of that, when the online training loss stagnates (section 5, ImageNet).

    The loss is averaged over windows of the worker's own steps. A window whose mean is not below `improvement` times
    the best one so far drops the rate: by 5 the first time, by 2 from then on.

    Args:
        optimizer: whose rate it is.
        window: steps of one mean.
        improvement: what counts as progress.
        most: drops after which the rate stays; the paper has two.

    Example:
        >>> import torch, easgd
        >>> optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
        >>> schedule = easgd.Stagnation(optimizer, window=2)
        >>> for loss in (3.0, 2.0, 2.5, 2.5):  # the second pair is no better than the first
        ...     optimizer.step(); schedule.observe(loss); schedule.step()
        >>> schedule.get_last_lr()
        [0.2]
    """

    def __init__(self, optimizer: torch.optim.Optimizer, window: int, improvement: float = 0.99, most: int = 2) -> None:
        if window < 1:
            raise refuse("window", window, "the loss is averaged over at least one step", "write window=100")
        self.window, self.improvement, self.most = window, improvement, most
        self.total, self.seen, self.drops = 0.0, 0, 0
        self.best = float("inf")
        super().__init__(optimizer)

    def observe(self, loss: float) -> None:
        """Tell the loss of a step, taken before its update."""
        self.total, self.seen = self.total + loss, self.seen + 1
        if self.seen < self.window:
            return
        mean, self.total, self.seen = self.total / self.seen, 0.0, 0
        if mean > self.improvement * self.best:
            self.drops = min(self.drops + 1, self.most)
        self.best = min(self.best, mean)

    def get_lr(self) -> list[float | torch.Tensor]:
        """The rate after the drops so far."""
        factor = 1.0 if self.drops == 0 else 0.2 * 0.5 ** (self.drops - 1)
        return [float(base) * factor for base in self.base_lrs]

    def state_dict(self) -> dict[str, object]:
        """Where it stands, as plain numbers."""
        names = ("total", "seen", "drops", "best", "last_epoch")
        return {name: getattr(self, name) for name in names} | {"base_lrs": [float(lr) for lr in self.base_lrs]}

    def load_state_dict(self, state_dict: dict[str, object]) -> None:
        """Take back what `state_dict` gave."""
        for name, value in state_dict.items():
            setattr(self, name, value)
