"""Rows of `pairwise` have each pair, and are few."""

from itertools import combinations, product

from tests.pairwise import pairwise

PARAMETERS = (range(7), "abc", [True, False], [None, "x"])


def test_each_pair_of_values_is_in_a_row():
    rows = pairwise(*PARAMETERS)
    for (first, values), (second, others) in combinations(enumerate(PARAMETERS), 2):
        assert {(row[first], row[second]) for row in rows} == set(product(values, others))


def test_rows_are_fewer_than_the_product():
    assert len(pairwise(*PARAMETERS)) <= 24


def test_two_parameters_are_their_product():
    assert sorted(pairwise("ab", "cd")) == sorted(product("ab", "cd"))
