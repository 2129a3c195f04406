"""What a basket costs."""


def total(prices: list[int], discount: int = 0) -> int:
    """Return the sum in cents, less the discount in percent."""
    return sum(prices) - discount
