"""The paper's analysis as functions, extended to every method of the library.

From the paper: `maps`, `stability`, `moments` (Lemma 1), `averaging` (Lemmas 2, 3), `convex` (the theorem).
Not in the paper: `rules` and `periods` (the linear map of any method over a period), `delay` and `fragments` (answers
that are used later, a vector exchanged in parts), `best`, `curvature`, `waiting` (time), `scale` (machines, shards),
`advise`.

This package shares no code with `easgd.methods`, so that tests can compare the two.
"""

from easgd.theory.advise import Advice, Spring, advise, check, spring
from easgd.theory.averaging import (
    double_average_covariance,
    double_average_error,
    double_average_holds,
    double_average_variance,
)
from easgd.theory.best import Best, fastest, optimal, stable_curvature, stable_lr
from easgd.theory.convex import ConvexBound, convex_bound, convex_lr_bound
from easgd.theory.curvature import Curvature, largest_curvature
from easgd.theory.delay import (
    DelayCost,
    delay_beta_bound,
    delay_cost,
    delay_stable,
    delay_variance,
    worker_variance,
)
from easgd.theory.fragments import FragmentCycle
from easgd.theory.maps import admm_map, admm_turn, easgd_map, easgd_turn, sync_map
from easgd.theory.moments import center_moments, center_mse, center_speed, mse_limit, roots, sgd_variance
from easgd.theory.periods import Cycle, center_variance, period_map, period_radius
from easgd.theory.rules import METHODS
from easgd.theory.scale import Cluster, Scale, Service, scale
from easgd.theory.stability import (
    admm_radius,
    easgd_lr_bound,
    easgd_moving_rate_bound,
    easgd_radius,
    easgd_stable,
    sync_beta_bound,
    sync_lr_bound,
    sync_stable,
)
from easgd.theory.waiting import Share, communication_share, delay_for, period_for, quiet_period

__all__ = [
    "METHODS",
    "Advice",
    "Best",
    "Cluster",
    "ConvexBound",
    "Curvature",
    "Cycle",
    "DelayCost",
    "FragmentCycle",
    "Scale",
    "Service",
    "Share",
    "Spring",
    "admm_map",
    "admm_radius",
    "admm_turn",
    "advise",
    "center_moments",
    "center_mse",
    "center_speed",
    "center_variance",
    "check",
    "communication_share",
    "convex_bound",
    "convex_lr_bound",
    "delay_beta_bound",
    "delay_cost",
    "delay_for",
    "delay_stable",
    "delay_variance",
    "double_average_covariance",
    "double_average_error",
    "double_average_holds",
    "double_average_variance",
    "easgd_lr_bound",
    "easgd_map",
    "easgd_moving_rate_bound",
    "easgd_radius",
    "easgd_stable",
    "easgd_turn",
    "fastest",
    "largest_curvature",
    "mse_limit",
    "optimal",
    "period_for",
    "period_map",
    "period_radius",
    "quiet_period",
    "roots",
    "scale",
    "sgd_variance",
    "spring",
    "stable_curvature",
    "stable_lr",
    "sync_beta_bound",
    "sync_lr_bound",
    "sync_map",
    "sync_stable",
    "worker_variance",
]
