"""Who exchanges what, worked out by hand, and names and layouts of parts."""

import pytest
import torch

from easgd.center.layout import Layout, assembled
from easgd.groups.names import by_model, shard_name
from easgd.groups.plan import Broadcast, Plan


def layout(**tensors):
    """Tensors by name: a shape, or (shape, shape of the whole, offset)."""
    shapes = [t[0] if isinstance(t[0], tuple) else t for t in tensors.values()]
    pieces = [t[1:] if isinstance(t[0], tuple) else None for t in tensors.values()]
    strides = [tuple(torch.empty(shape).stride()) for shape in shapes]
    dtypes = ("torch.float32",) * len(shapes)
    return Layout(tuple(tensors), tuple(shapes), tuple(strides), dtypes, tuple(pieces) if any(pieces) else ())


def test_of_a_replicated_model_the_first_rank_exchanges_all_and_broadcasts_it():
    plans = [Plan.of([layout(a=(2, 3), b=(4,))] * 3, member) for member in range(3)]
    assert [plan.owned for plan in plans] == [((0, 10),), (), ()]
    assert {plan.owners for plan in plans} == {(0,)}
    assert {plan.broadcasts for plan in plans} == {(Broadcast(0, 10, ((0, 10, 0),)),)}


def test_of_a_sharded_model_each_rank_exchanges_its_own_and_broadcasts_nothing():
    parts = [layout(a=((2, 3), (3, 3), (0, 0))), layout(a=((1, 3), (3, 3), (2, 0)))]
    plans = [Plan.of(parts, member) for member in range(2)]
    assert [plan.owned for plan in plans] == [((0, 6),), ((0, 3),)]
    assert [plan.broadcasts for plan in plans] == [(), ()]
    assert plans[0].owners == (0, 1)


def test_what_all_ranks_hold_beside_their_shards_the_first_exchanges():
    parts = [
        layout(a=((2,), (4,), (0,)), norm=(3,), c=((1,), (2,), (0,))),
        layout(a=((2,), (4,), (2,)), norm=(3,), c=((1,), (2,), (1,))),
    ]
    first, second = (Plan.of(parts, member) for member in range(2))
    assert first.owned == ((0, 6),)
    assert second.owned == ((0, 2), (5, 6))
    assert second.owned_layout.names == ("a", "c")
    assert first.broadcasts == second.broadcasts == (Broadcast(0, 3, ((0, 3, 2),)),)
    vector = torch.arange(6.0)
    assert second.take_owned(vector).tolist() == [0, 1, 5]
    second.put_owned_(vector, torch.tensor([7.0, 8.0, 9.0]))
    assert vector.tolist() == [7, 8, 2, 3, 4, 9]


def test_a_rank_that_has_nothing_of_a_small_tensor_owns_nothing_of_it():
    parts = [layout(a=((1,), (1,), (0,))), layout(a=((0,), (1,), (1,)))]
    assert Plan.of(parts, 1).owned == ()
    assert Plan.of(parts, 1).owners == (0,)


def test_parts_are_put_together_at_their_places():
    parts = [layout(a=((2, 2), (3, 2), (0, 0)), b=(1,)), layout(a=((1, 2), (3, 2), (2, 0)))]
    values = [{"a": torch.ones(2, 2), "b": torch.zeros(1)}, {"a": torch.full((1, 2), 5.0)}]
    whole = assembled(list(zip(parts, values, strict=True)))
    assert whole["a"].tolist() == [[1, 1], [1, 1], [5, 5]]
    assert whole["b"].tolist() == [0]


@pytest.mark.parametrize("it", [layout(a=(2,)), layout(a=((1,), (2,), (1,)), b=(3,))])
def test_a_layout_survives_json(it):
    assert Layout.from_json(it.as_json()) == it


def test_a_worker_that_is_sharded_otherwise_does_not_fit():
    mine, theirs = layout(a=((1,), (2,), (1,))), layout(a=((1,), (2,), (0,)))
    assert mine.differences(theirs) == ["the tensors are sharded in another way"]


def test_parts_of_a_model_are_found_by_name():
    names = ["center", "gan.shard-1", "a.shard-x", shard_name("gan", 0)]
    assert by_model(names) == {
        "center": ["center"],
        "gan": ["gan.shard-1", "gan.shard-0"],
        "a.shard-x": ["a.shard-x"],
    }
