"""The callbacks on a real Ray: the same numbers as on processes, and a killed worker costs the other nothing."""

from __future__ import annotations

import pytest
import test_lightning
import test_transformers
from linear_problem import STEPS, by_hand

pytest.importorskip("ray", reason="needs easgd[ray]")

pytestmark = pytest.mark.timeout(400)  # a Ray of its own and two processes that import the framework

HERE = "import os\nos.chdir('{folder}')\n"
LIGHTNING = test_lightning.SCRIPT + test_lightning.FIT
TRAINER = (
    test_transformers.SCRIPT
    + """
args = arguments(eval_strategy="epoch")
trainer = Unshuffled(model, args, train_dataset=data, eval_dataset=data, callbacks=[elastic])
trainer.train()
told["validated"] = told["evaluated"]
tell(step=trainer.state.global_step)
"""
)


@pytest.mark.parametrize("body", [LIGHTNING, TRAINER], ids=["lightning", "transformers"])
def test_training_is_the_method_written_by_hand(body, launch):
    ended = launch(HERE + body, "--ray", "local")
    assert ended.code == 0, ended.output
    for rank in (0, 1):
        told = ended.told(rank)
        assert told["clock"] == told["step"] == STEPS
        assert told["weight"] == pytest.approx(by_hand()[-1].tolist(), rel=1e-5)
        assert told["validated"] == told["center"] != []


def test_a_killed_worker_costs_the_other_nothing(launch):
    """With steps that the other's scaler skips, on an asynchronous center."""
    body = test_lightning.SCRIPT + test_lightning.SCALED.replace("rank == 1", "rank == 0")
    body = (
        body.replace("sync=True", "sync=False") + "module.killed_at = 5 if rank == 1 else None\n" + test_lightning.FIT
    )
    ended = launch(HERE + body, "--ray", "local")
    assert ended.code != 0
    told = ended.told(0)
    assert told["clock"] == told["step"] == STEPS
    assert told["validated"] == told["center"] != []
    assert not (ended.folder / "told-1.json").exists()
