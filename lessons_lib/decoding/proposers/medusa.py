"""Medusa (lesson 09): small heads on the target's final state draft a tree of tokens, verified in one forward pass.

Cai et al. 2024 (arXiv 2401.10774). The state at position t, after the final norm, is the input from which the LM head
predicts token t + 1; head k = 1, 2, ... predicts token t + k + 1 from the same state. Untrained, every head equals the
LM head.
When the heads run, token t + 1 is known already. Optionally the heads read it, too. This is similar to Hydra (Ankner et
al. 2024, arXiv 2402.05109), whose heads read every token before theirs, while these read only the first.

This file holds the proposer, the heads and their files; the shape of the tree and the search for it are in
tree_shape.py.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import skip_init

from lessons_lib.decoding.draft_tree import ROOT, DraftTree, ModelOutput
from lessons_lib.decoding.proposers import Proposer
from lessons_lib.decoding.proposers.tree_shape import TreeShape, regular
from lessons_lib.models import trained
from lessons_lib.models.draft import scatter
from lessons_lib.models.hub import LanguageModel
from lessons_lib.models.store import ModelUnavailable


def shared_parameters(count: int, width: int) -> int:
    """Parameters of `count` heads of one block that share the model's LM head: K (D^2 + D)."""
    return count * (width**2 + width)


def own_parameters(count: int, width: int, vocab_size: int) -> int:
    """Parameters of `count` heads with an LM head each, as published: V D more per head."""
    return shared_parameters(count, width) + count * vocab_size * width


class ResidualBlock(nn.Linear):
    """x + silu(W x + b + more), (..., D) -> (..., D); W and b start at zero, so at first it is the identity.

    The authors' code keeps a random b, so it does not start as the model's own head.
    """

    def __init__(self, width: int):
        super().__init__(width, width)

    def reset_parameters(self) -> None:
        """Initialize W and b; `nn.Linear` calls it."""
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor, more: Tensor | float = 0.0) -> Tensor:
        """x and more (..., D) -> (..., D)."""
        return x + F.silu(super().forward(x) + more)


def root_reader(width: int, rank: int, seed: int) -> nn.Sequential:
    """A low-rank map (..., D) -> (..., D) that starts at zero, because its second matrix is zero."""
    down, up = (skip_init(nn.Linear, *sizes, bias=False) for sizes in ((width, rank), (rank, width)))
    nn.init.normal_(down.weight, std=width**-0.5, generator=torch.Generator().manual_seed(seed))
    nn.init.zeros_(up.weight)
    return nn.Sequential(down, up)


class MedusaHeads(nn.Module):
    """K Medusa heads on a model with the LM head lm_head (V, D), whose device and dtype they have.

    All heads share the LM head, which is neither trained nor a parameter: one matmul computes the logits of all heads.
    The published heads have a trainable copy each.

    count: number of heads K. blocks: residual blocks of each head (R).
    root_rank: rank r of the map by which a head's first block also reads the token sampled from the state, as the LM
    head's row of that token, scaled to root mean square 1. 0: heads read only the state, as published.
    """

    def __init__(self, lm_head: Tensor, count: int = 4, blocks: int = 1, root_rank: int = 0):
        super().__init__()
        if count < 1 or blocks < 1:
            raise ValueError(f"at least one head of one block is needed, not {count} of {blocks}")
        self.vocab_size, self.width = lm_head.shape
        self.count, self.blocks, self.root_rank = count, blocks, root_rank
        lm_head = lm_head.detach()
        stacks = [nn.Sequential(*(ResidualBlock(self.width) for _ in range(blocks))) for _ in range(count)]
        self.stacks = nn.ModuleList(stacks).to(lm_head.device, lm_head.dtype)
        readers = [root_reader(self.width, root_rank, seed) for seed in range(count if root_rank else 0)]
        self.root_readers = nn.ModuleList(readers).to(lm_head.device, lm_head.dtype)
        self.register_buffer("lm_head", lm_head, persistent=False)
        self.register_buffer("rows", lm_head, persistent=False)  # rows of the tokens that are scored
        self.register_buffer("kept", None, persistent=False)

    def trim(self, kept: Tensor) -> None:
        """From now on score only the tokens `kept` (K,), so read fewer rows (Zhao et al. 2025, arXiv 2502.14856)."""
        self.kept = kept.to(self.lm_head.device, torch.long)
        self.rows = self.lm_head[self.kept]

    @property
    def scored(self) -> int:
        """Number of tokens that the heads score."""
        return len(self.rows)

    def forward(self, final: Tensor, count: int | None = None, chosen: Sequence[int] | Tensor | None = None) -> Tensor:
        """Logits of the first `count` heads (None: all): (T, D) after the final norm -> (T, K, V).

        Tokens that trimmed heads do not score get -inf. chosen: (T,), the token sampled from each state, required by
        heads that read it and ignored by others.
        """
        scores = self.scores(final, count, chosen)
        return scores if self.kept is None else scatter(scores, self.kept, self.vocab_size)

    def top_tokens(self, final: Tensor, ranks: int, count: int | None = None, chosen=None) -> Tensor:
        """The `ranks` most probable tokens of each head, best first: (T, K, ranks). Other arguments as `forward`.

        ranks: at most `scored`.
        """
        best = self.scores(final, count, chosen).topk(ranks).indices
        return best if self.kept is None else self.kept[best]

    def scores(self, final: Tensor, count: int | None = None, chosen=None) -> Tensor:
        """As `forward`, but logits of the scored tokens only, in the order of `kept`: (T, K, scored)."""
        if self.root_readers:
            if chosen is None:
                raise ValueError(
                    "these heads also read the tokens that were chosen from the states; give chosen=, (T,) ids"
                )
            root = self.lm_head[torch.as_tensor(chosen, device=self.lm_head.device)]
            root = F.rms_norm(root, (self.width,))
        states = []
        for k, (first, *rest) in enumerate(self.stacks[:count]):
            x = first(final, self.root_readers[k](root) if self.root_readers else 0.0)
            for block in rest:
                x = block(x)
            states.append(x)
        return F.linear(torch.stack(states, dim=1), self.rows)


class Medusa(Proposer):
    """Drafts a tree of Medusa heads' top tokens. They read the last hidden state, so the target must offer "states".

    heads: MedusaHeads trained for the target's model. choices: the tree, a TreeShape or its choices; None is the chain
    of each head's argmax. Lossless under Greedy and Sampling.
    """

    needs, after = frozenset({"states"}), ("final",)

    def __init__(self, heads: MedusaHeads, choices: TreeShape | Iterable[Sequence[int]] | None = None):
        choices = regular(*[1] * heads.count) if choices is None else choices
        self.shape = choices if isinstance(choices, TreeShape) else TreeShape.of(choices)
        if self.shape.depth > heads.count or self.shape.ranks > heads.scored:
            raise ValueError(
                f"the tree is {self.shape.depth} deep and {self.shape.ranks} ranks wide, too much for {heads.count} "
                f"heads over {heads.scored} tokens; cut its choices"
            )
        self.heads = heads

    def reset(self, target, prompt: Sequence[int]) -> None:
        """Start a new text without a hidden state. Raises ValueError if heads and target differ in vocabulary size."""
        if target.vocab_size != self.heads.vocab_size:
            raise ValueError(
                f"these heads score {self.heads.vocab_size} tokens, but the target has {target.vocab_size}; "
                "use heads trained for it"
            )
        self.state = None

    @torch.no_grad()
    def propose(self, ids: Sequence[int], tree: DraftTree) -> None:
        """Fill the shape with tokens of the heads, as many levels as the budget allows."""
        depth = int(min(tree.max_depth, self.shape.depth))
        if depth < 1 or self.state is None:
            return
        best = self.heads.top_tokens(self.state[None], self.shape.ranks, depth, ids[-1:])
        self.fill(tree, best[0].tolist())

    def observe(self, tree: DraftTree, path: list[int], tokens: list[int], output: ModelOutput) -> None:
        """Keep the hidden state of the last accepted node (or the root), from which the new root was predicted.

        Raises ValueError if its width is not that of the heads.
        """
        last = path[-1] if path else ROOT
        state = output.states["final"][1 + last]
        if len(state) != self.heads.width:
            raise ValueError(
                f"these heads read states of width {self.heads.width}, but the target's have {len(state)}; use heads "
                "trained for it"
            )
        self.state = state.to(self.heads.lm_head)

    def fill(self, tree: DraftTree, best: Sequence[Sequence[int]]) -> None:
        """Add the shape's nodes to the tree. best[k]: the top tokens of head k + 1, used on level k + 1."""
        nodes = {(): ROOT}  # choice -> node
        for choice in self.shape.choices:  # level by level, so parents come first
            if len(choice) <= len(best) and nodes.get(choice[:-1]) is not None:
                nodes[choice] = tree.add(nodes[choice[:-1]], best[len(choice) - 1][choice[-1]])


def save_heads(heads: MedusaHeads, folder: Path, base: str, **card) -> None:
    """Store the heads' parameters and a card that names their model. card: further entries.

    fp16 rather than bf16: such small weights need no wide exponent, and rounding is eight times finer.
    """
    tensors = {name: value.to(torch.float16) for name, value in heads.named_parameters()}
    if heads.kept is not None:
        tensors["kept"] = heads.kept.to(torch.int32)
    sizes = {name: getattr(heads, name) for name in ("count", "blocks", "root_rank", "width", "vocab_size")}
    trained.write(folder, tensors, base=base, **sizes, kept=heads.scored, **card)


def load_heads(name: str | Path, model: LanguageModel, count: int | None = None) -> MedusaHeads:
    """Load the stored heads of this name or folder, on the model's device and in its dtype.

    count: expected number of heads (None: any). Raises ModelUnavailable if there are none; ValueError for heads of
    another model or number.
    """
    if not (card := trained.read_card(name)):
        raise ModelUnavailable(f"{name} holds no heads; train some with `python -m lessons_lib.training heads`.")
    lm_head = model.network.get_output_embeddings().weight
    if card["base"] != model.name or (card["vocab_size"], card["width"]) != tuple(lm_head.shape):
        raise ValueError(
            f"{name} holds heads of {card['base']!r} (vocabulary {card['vocab_size']}, width {card['width']}), not of "
            f"{model.name!r} ({lm_head.shape[0]}, {lm_head.shape[1]}); load that model, or train heads for this one"
        )
    if count not in (None, card["count"]):
        raise ValueError(f"{name} holds {card['count']} heads, not {count}; ask for {card['count']} or train others")
    heads = MedusaHeads(lm_head, card["count"], card["blocks"], card["root_rank"])
    tensors = trained.read_weights(name)
    kept = tensors.pop("kept", None)
    heads.load_state_dict(tensors)
    if kept is not None:
        heads.trim(kept)
    return heads.eval().requires_grad_(False)
