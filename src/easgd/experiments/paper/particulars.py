"""What tells a run's settings from those that the paper has for its method, in the words of figures and tables."""

from __future__ import annotations

from dataclasses import replace

from easgd.training.config import Config


def particulars(config: Config) -> list[str]:
    """Return each setting besides p, τ and η that differs from the method's own."""
    own = replace(config, momentum=None).resolved().momentum
    found = {
        config.compression: config.compression != "none",
        f"α = {config.moving_rate or 0:g}": config.moving_rate is not None,
        f"ρ = {config.rho or 0:g}": config.rho is not None,
        f"δ = {config.momentum or 0:g}": config.momentum not in (None, own),
        f"warm-up of {config.warmup} steps": bool(config.warmup),
        f"η/10 after {config.drop} steps": config.drop is not None,
        "workers start apart": config.start == "apart",
        f"γ = {config.gamma:g}": config.decay == "sqrt",
        "decay at stagnation": config.decay == "stagnation",
    }
    return [words for words, differs in found.items() if differs]
