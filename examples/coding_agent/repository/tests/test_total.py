import unittest

from shop.total import total


class TotalTest(unittest.TestCase):
    def test_sum(self) -> None:
        assert total([250, 750]) == 1_000

    def test_discount(self) -> None:
        assert total([250, 750], discount=20) == 800
