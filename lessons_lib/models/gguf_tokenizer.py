"""The tokenizer that a GGUF file describes (every lesson), as llama.cpp reads it.

transformers' own conversion of such files drops the splitting rule that the file names: digits then are not
split from what surrounds them, which no round trip reveals. tests/peers/test_tokenizer.py compares ids with
llama.cpp's.
"""

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

CONTROL = 3  # the GGUF token type of chat markers and the like


def build_tokenizer(fields: dict) -> PreTrainedTokenizerFast:
    """GGUF metadata (name -> value) -> a byte-level BPE tokenizer with single-id special tokens.

    Pads on the left, as batched generation needs. ValueError for all but the model "gpt2" split as "smollm".
    """
    kind = fields["tokenizer.ggml.model"], fields["tokenizer.ggml.pre"]
    if kind != ("gpt2", "smollm"):
        raise ValueError(f"The GGUF tokenizer {kind} is not converted here, only ('gpt2', 'smollm').")
    tokens = fields["tokenizer.ggml.tokens"]
    special = {
        key: tokens[fields[f"tokenizer.ggml.{name}_token_id"]]
        for key, name in (
            ("bos_token", "bos"),
            ("eos_token", "eos"),
            ("unk_token", "unknown"),
            ("pad_token", "padding"),
        )
    }
    return PreTrainedTokenizerFast(
        tokenizer_object=_backend(fields),
        **special,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=fields["llama.context_length"],
        chat_template=fields.get("tokenizer.chat_template"),
    )


def _backend(fields: dict) -> Tokenizer:
    tokens, types = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, types, strict=True)
            if kind == CONTROL
        ]
    )
    return tokenizer
