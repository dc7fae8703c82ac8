"""Comparing tokenizers (lesson 06): do a draft model and its target mean the same token by the same id?"""

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
    """Check that two tokenizers encode alike -> number of ids in use (the largest id + 1).

    Compares the vocabularies, special tokens included, and the ids of several kinds of text. EOS tokens and chat
    templates may differ, since they do not change the meaning of an id. Raises ValueError with the first difference.

    The result is cached while both keep their number of tokens.
    """
    return _compared(a, b, len(a), len(b))


@lru_cache(maxsize=8)
def _compared(a, b, *_) -> int:
    ours = a.get_vocab()
    if a is not b:
        _compare_vocabularies(ours, b.get_vocab())
        for text in (*PROBES, *_special_texts(a, b)):
            if a(text, add_special_tokens=False).input_ids != b(text, add_special_tokens=False).input_ids:
                raise ValueError(f"the tokenizers cut {text!r} differently; use models with the same tokenizer")
    return 1 + max(ours.values())


def _compare_vocabularies(ours: dict[str, int], theirs: dict[str, int]) -> None:
    if differing := ours.items() ^ theirs.items():
        token, _ = min(differing, key=lambda pair: (pair[1], pair[0]))
        first, second = (vocabulary.get(token, "missing") for vocabulary in (ours, theirs))
        raise ValueError(
            f"the tokenizers differ: token {token!r} is {first} in one and {second} in the other; "
            "use models with the same tokenizer"
        )


def _special_texts(a, b) -> list[str]:
    """Texts that contain the special tokens of both tokenizers, and a chat in the first tokenizer's template."""
    texts = [f"one {token}two" for token in sorted({*a.all_special_tokens, *b.all_special_tokens})]
    if getattr(a, "chat_template", None):
        texts.append(a.apply_chat_template([{"role": "user", "content": "Hello"}], tokenize=False))
    return texts


def shared_ids(target, draft) -> int:
    """Number of ids, from 0, that mean the same token in target and draft model.

    Raises ValueError if the tokenizers differ, or if the vocabulary sizes of models without tokenizers do.
    """
    if target.tokenizer is None and draft.tokenizer is None:
        if target.vocab_size != draft.vocab_size:
            raise ValueError(
                f"without tokenizers target and draft need vocabularies of one size, not {target.vocab_size} and "
                f"{draft.vocab_size}; use models with the same tokenizer"
            )
        return target.vocab_size
    if target.tokenizer is None or draft.tokenizer is None:
        without = "draft" if draft.tokenizer is None else "target"
        raise ValueError(
            f"the {without} has no tokenizer to compare; use a model from lessons_lib.load, or "
            "TransformersTarget(network, tokenizer)"
        )
    ids = check_same_tokenizer(target.tokenizer, draft.tokenizer)
    if ids > min(target.vocab_size, draft.vocab_size):
        raise ValueError(
            f"the tokenizer has ids up to {ids - 1}, but target and draft have logits for {target.vocab_size} and "
            f"{draft.vocab_size} ids; use models made for this tokenizer"
        )
    return ids
