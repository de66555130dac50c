"""Every use of randomness has a tag of its own."""

from easgd.data import seeds


def test_the_tags_are_distinct():
    tags = {name: value for name, value in vars(seeds).items() if name.isupper()}
    assert tags["DROPOUT"] == 4
    assert len(set(tags.values())) == len(tags) == 5
