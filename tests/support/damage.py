"""What can happen to a file: some of its bytes replaced by others, or by none or more."""

from hypothesis import strategies as st

DAMAGES = st.lists(st.tuples(st.integers(0, 9999), st.integers(0, 9), st.binary(max_size=9)), min_size=1, max_size=4)


def damaged(content: bytes, damages: list[tuple[int, int, bytes]]) -> bytes:
    """content with bytes put in the place of others: (where, how many, what stands there then) each."""
    for place, count, new in damages:
        place %= len(content) + 1
        content = content[:place] + new + content[place + count :]
    return content
