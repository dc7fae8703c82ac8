"""Which token ids mean the same to a target and its draft (lesson 06): p and q must be over the same tokens."""

from lessons_lib.models.same_tokenizer import check_same_tokenizer


def shared_ids(target, draft) -> int:
    """Ids, from 0 on, that mean the same token to both. Raises ValueError if the tokenizers differ or, of models
    without tokenizers, the vocabulary sizes."""
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
