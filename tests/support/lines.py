"""What a drawn line shows."""


def points(line) -> list[tuple]:
    """(x, y) of each of its points."""
    return list(zip(line.get_xdata(), line.get_ydata(), strict=True))
