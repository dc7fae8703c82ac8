"""Whether two models speak one token language (lesson 06): the same id must mean the same text to both.

Equal vocabulary sizes say little: two different tokenizers may have as many tokens, and one tokenizer may come
with embeddings padded to different sizes.
"""

from functools import lru_cache

PROBES = (
    "They thought that the other weather station, rather than this one, was recording interesting information.",
    "The quick brown fox, 'quoted', isn't 100% sure: a/b_c-d@e.org!",
    "Größe, naïve façade, Łódź, Ελληνικά, кириллица",
    "速い茶色の狐 빠른 갈색 여우 敏捷的棕色狐狸",
    "👍🏽 👩‍👩‍👧 🇫🇷 ∑∞√ é",
    "0 12 345 6789 3.14159 1,000,000 2024-02-29",
    "def f(x):\n\treturn {'a': x**2}  # code\n\n\nif (a != b) { c += 1; }",
    "   leading, trailing and   inner spaces   \n \n",
)


def check_same_tokenizer(a, b) -> int:
    """-> ids in use: every token's id is below it. Raises ValueError that names the first difference.

    Compared are the vocabularies, special tokens included, and the ids of texts of many kinds. Which of its special
    tokens a model ends with, and its chat template, may differ: a token means the same whoever writes it. Two that were
    found alike are not compared again while they have as many tokens: it takes as long as a step or two of a model.
    """
    return _compared(a, b, len(a), len(b))


@lru_cache(maxsize=8)
def _compared(a, b, *_) -> int:
    ours = a.get_vocab()
    if a is not b:
        _compare_vocabularies(ours, b.get_vocab())
        for text in (*PROBES, *_special_texts(a, b)):
            _compare_ids(a, b, text)
    return 1 + max(ours.values())


def _compare_vocabularies(ours: dict[str, int], theirs: dict[str, int]) -> None:
    if differing := ours.items() ^ theirs.items():
        token, _ = min(differing, key=lambda pair: (pair[1], pair[0]))
        first, second = (vocabulary.get(token, "missing") for vocabulary in (ours, theirs))
        raise ValueError(
            f"the tokenizers differ: token {token!r} is {first} in one and {second} in the other; "
            "use models with the same tokenizer"
        )


def _compare_ids(a, b, text: str) -> None:
    ours, theirs = (t(text, add_special_tokens=False).input_ids for t in (a, b))
    if ours == theirs:
        return
    at = next((i for i, (x, y) in enumerate(zip(ours, theirs, strict=False)) if x != y), min(len(ours), len(theirs)))
    first, second = (t.convert_ids_to_tokens(ids[at : at + 1]) for t, ids in ((a, ours), (b, theirs)))
    raise ValueError(
        f"the tokenizers cut {text!r} differently: token {at} is {first} in one and {second} in the other; "
        "use models with the same tokenizer"
    )


def _special_texts(a, b) -> list[str]:
    """Special tokens of both inside a text, and a chat, as the first tokenizer writes it."""
    texts = [f"one {token}two" for token in sorted({*a.all_special_tokens, *b.all_special_tokens})]
    if getattr(a, "chat_template", None):
        texts.append(a.apply_chat_template([{"role": "user", "content": "Hello"}], tokenize=False))
    return texts
