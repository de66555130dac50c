"""Learning-rate schedules of the paper, for torch's own schedulers."""

from __future__ import annotations

from easgd.errors import refuse


class decay:  # noqa: N801 - used like a function: LambdaLR(optimizer, decay(gamma))
    """η_t = η/(1 + γt)^0.5 on each worker's own clock (supplement, "Dependence of the communication period").

    Example:
        >>> import torch, easgd
        >>> optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.1)
        >>> scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, easgd.decay(gamma=3.0))
        >>> optimizer.step(); scheduler.step()
        >>> scheduler.get_last_lr()
        [0.05]
    """

    def __init__(self, gamma: float) -> None:
        if not 0 <= gamma < float("inf"):
            raise refuse("gamma", gamma, "the decay γ is finite and not negative", "write gamma=1e-4")
        self.gamma = gamma

    def __call__(self, t: int) -> float:
        """Return the factor of step t."""
        return float((1 + self.gamma * t) ** -0.5)
