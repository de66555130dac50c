"""The string is the definition: kernels follow from it, wrong claims are refused."""

import pytest

from easgd.errors import SettingError
from easgd.models import CIFAR, IMAGENET, Shape, parse


def kernels(notation: str) -> list[tuple[str, int, int]]:
    return [(layer.kind, layer.kernel, layer.stride) for layer in parse(notation)]


def test_cifar_kernels_are_the_papers():
    assert kernels(CIFAR) == [
        ("C", 5, 1), ("P", 2, 2), ("C", 5, 1), ("P", 2, 2), ("C", 3, 1), ("D", 0, 0), ("S", 0, 0)
    ]  # fmt: skip


def test_imagenet_kernels_follow_from_the_shapes():
    assert kernels(IMAGENET) == [
        ("C", 7, 2), ("P", 3, 3), ("C", 5, 1), ("P", 2, 2), ("C", 3, 1), ("C", 2, 1), ("C", 2, 1), ("P", 2, 2),
        ("D", 0, 0), ("D", 0, 0), ("S", 0, 0),
    ]  # fmt: skip


def test_shapes_are_chained():
    layers = parse("(3,28) C(64,24)\n P(64,12) S(10,1)")
    assert [layer.source for layer in layers] == [Shape(3, 28), Shape(64, 24), Shape(64, 12)]
    assert layers[-1].source.features == 64 * 12 * 12


def test_a_kernel_may_be_named():
    assert kernels("(3,221)C6/2(96,108)P3/2(96,53)S(10,1)")[:2] == [("C", 6, 2), ("P", 3, 2)]


def test_pooling_may_leave_a_rim():
    # 13 = 6 windows of 2 and one pixel over
    assert kernels("(8,13)P(8,6)S(2,1)")[0] == ("P", 2, 2)


@pytest.mark.parametrize(
    ("notation", "said"),
    [
        ("C(64,24)S(10,1)", "must begin with its input"),
        ("(3,28)", "no output layer"),
        ("(3,28)C(64,24)", "no output layer"),
        ("(3,28)X(64,24)S(10,1)", "cannot read it from 'X"),
        ("(3,28)C(64,29)S(10,1)", "no kernel"),
        ("(3,221)C(64,200)S(10,1)", "no kernel"),
        ("(3,28)P(3,20)S(10,1)", "no kernel"),
        ("(3,28)P(4,14)S(10,1)", "keeps the 3 channels"),
        ("(3,28)D(4,2)S(10,1)", "one pixel"),
        ("(3,28)S(10,1)D(4,1)", "comes last"),
        ("(3,28)C5/1(64,23)S(10,1)", "leaves 24 of 28"),
        ("(3,28)C0(64,29)S(10,1)", "must fit"),
        ("(3,0)S(10,1)", "at least 1"),
        (f"(3,{'9' * 5000})S(10,1)", "must begin with its input"),
        (f"(3,28)C(64,24)S({'9' * 5000},1)", "cannot read it from 'S"),
    ],
)
def test_wrong_claims_are_refused_in_one_line(notation, said):
    with pytest.raises(SettingError, match=said.replace("(", r"\(")) as caught:
        parse(notation)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
