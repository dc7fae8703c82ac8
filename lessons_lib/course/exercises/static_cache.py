"""Checkers: a loop over a static cache, a ring, a function that compiles once, and a large model on a GPU."""

import torch

from lessons_lib.caches.cache import StaticCache
from lessons_lib.course.exercises import Attempt, Wrong, exercise, expect
from lessons_lib.course.exercises.kv_cache import decoded
from lessons_lib.measure.config import CONFIGS
from lessons_lib.measure.profiler import count_graphs
from lessons_lib.models.decoder import Decoder, Segment
from lessons_lib.models.tiny_models import tiny


@exercise("03.1")
def write(attempt: Attempt) -> None:
    """The tokens of decoding without a cache, each fed once at its own position, the last one not at all."""
    decoder = Decoder.from_transformers(tiny())
    c = decoder.config
    for ids, n in [([5, 7, 11], 6), ([1], 1), ([8, 60, 2, 9, 3], 4)]:
        slots, fed = len(ids) + n - 1, []
        cache = StaticCache(c.num_layers, c.num_kv_heads, c.head_dim, torch.float64, capacity=slots)

        def forward(tokens, positions, cache=cache, fed=fed, slots=slots):
            fed.extend(positions)
            if max(positions) >= slots:
                raise Wrong(f"position {max(positions)} needs a slot that is not there: the cache has {slots}.")
            where = torch.tensor(positions)
            cache.keep(len(fed) - len(tokens))
            return decoder.logits(decoder(torch.tensor(tokens), [Segment(where, cache)]).last[-1])

        expect(attempt, forward, list(ids), n, equals=decoded(decoder, ids, n)[len(ids) :])
        if fed != list(range(slots)):
            raise Wrong(f"The tokens are right, but they were fed at positions {fed}; expected {list(range(slots))}.")


@exercise("03.2")
def slot_and_mask(attempt: Attempt) -> None:
    """Slot position % slots; every slot that was written so far is visible."""
    for slots in (1, 4, 5):
        for position in range(3 * slots):
            written = [index <= position for index in range(slots)]
            wanted = (torch.tensor([position % slots]), torch.tensor([written]))
            expect(attempt, torch.tensor([position]), slots, equals=wanted)
    _compiles_once(attempt, [(torch.tensor([position]), 4) for position in range(6)])


@exercise("03.3")
def penalize(attempt: Attempt) -> None:
    """The penalty on all tokens that occurred, from one graph for all lengths."""
    random = torch.Generator().manual_seed(0)
    calls = []
    for length in (1, 2, 5, 8):
        logits, history = torch.randn(12, generator=random), torch.randint(12, (8,), generator=random)
        history[max(length, 7) :] = 10**6  # garbage, of which some is no token
        wanted = logits.clone()
        for token in set(history[:length].tolist()):
            wanted[token] = logits[token] / 1.3 if logits[token] > 0 else logits[token] * 1.3
        calls.append((logits, history, torch.tensor([length]), 1.3))
        expect(attempt, *calls[-1], equals=wanted)
    _compiles_once(attempt, calls)


@exercise("03.4")
def gain(attempt: Attempt) -> None:
    """The longer of the host's launching and the GPU's time (kernels, and reading the weights), over the GPU's time."""
    for name, bandwidth, eager, graph in [
        ("llama-2-7b", 4.16e12, 9.68e-3 / 30, 1.71e-3 / 30),
        ("smollm2-135m", 4.16e12, 9.68e-3 / 30, 1.71e-3 / 30),
        ("opt-13b", 1e12, 1e-4, 1e-5),
    ]:
        config = CONFIGS[name]
        on_gpu = config.num_layers * graph + 2 * config.weights / bandwidth
        times_as_fast = max(config.num_layers * eager, on_gpu) / on_gpu
        expect(attempt, config, bandwidth, eager, graph, equals=times_as_fast)


def _compiles_once(attempt: Attempt, calls: list[tuple]) -> None:
    """Raises Wrong if these calls need more than one graph of fixed shapes, or read a tensor as a Python number.

    torch captures such a number (`item`) without a new graph, but a GPU waits for it, and no CUDA graph can contain it.
    """
    captured: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, _) -> torch.fx.GraphModule:
        captured.append(graph)
        return graph

    compiled = torch.compile(attempt, dynamic=False, fullgraph=True, backend=keep)
    try:
        count_graphs(lambda: [compiled(*given) for given in calls])  # forgets what was compiled before
    except Exception as error:  # errors of several kinds, from the compiler
        raise Wrong(f"The results are right, but it does not compile: {str(error).strip().splitlines()[0]}") from error
    if len(captured) > 1:
        raise Wrong(f"The results are right, but {len(captured)} graphs were compiled where one is enough.")
    if any(node.target == "item" for node in captured[0].graph.nodes):
        raise Wrong("The results are right, but it reads a tensor as a Python number; keep it a tensor.")
