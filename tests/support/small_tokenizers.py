"""Tokenizers of a few tokens, one for each way in which tokens become text."""

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

SEP = "<|sep|>"  # a special token of each


def byte_level() -> PreTrainedTokenizerFast:
    """A token for each byte, as GPT-2 writes them, and two of two bytes: "EN", and the end of é with the start of é."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = [("E", "N"), ("©", "Ã")]
    model = models.BPE({token: i for i, token in enumerate([*alphabet, *map("".join, pairs)])}, pairs)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return _finished(tokenizer)


def metaspace() -> PreTrainedTokenizerFast:
    """Pieces with a mark for the space before a word, of which the first is dropped; bytes for all other letters."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁a", "a", "b", "E", "ND", "▁EN", "D"]
    tokenizer = Tokenizer(models.Unigram([(piece, -1.0) for piece in pieces], 0, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    steps = decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)
    tokenizer.decoder = decoders.Sequence(list(steps))
    return _finished(tokenizer)


def word_piece(clean_up: bool = False) -> PreTrainedTokenizerFast:
    """Words, and their continuations with a mark. clean_up: transformers joins "do n ' t" after decoding."""
    words = ["[UNK]", "do", "n", "'", "t", ".", "##ing", "##s", "a", "b", "END", "E", "##ND"]
    tokenizer = Tokenizer(models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    return _finished(tokenizer, clean_up_tokenization_spaces=clean_up)


def words() -> PreTrainedTokenizerFast:
    """One token a word, and no decoder: words are joined with spaces."""
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(["a", "b", "END", "é"])}, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return _finished(tokenizer)


def _finished(tokenizer: Tokenizer, **options) -> PreTrainedTokenizerFast:
    tokenizer.add_special_tokens([AddedToken(SEP, special=True, normalized=False)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **options)


ALL = [byte_level, metaspace, word_piece, words]
