"""Claims of lesson 13: smol-layerskip, fine-tuned on text-to-SQL, drafts with its own first layers, greedy.

All methods write the same answers, in alternation, each as long as plain decoding's answer without its end token. Exit
layer and draft length are chosen before: on other texts (of the validation split), by the cost model and this machine's
width curve; "adaptive" chooses at every step instead.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from time import perf_counter

from bench import questions
from bench.common import DTYPE, Measured, Run, claim, costs_of, fingerprint, listed, mean_rate
from bench.questions import Made, decoding, differing, each_method, in_steps, speed, tokens_per_pass
from lessons_lib import EarlyExit, generate, load
from lessons_lib.decoding.peers import by_early_exit, by_transformers
from lessons_lib.decoding.prediction import best_exit, replayed_speed
from lessons_lib.decoding.proposers.draft_length import Adaptive
from lessons_lib.decoding.proposers.early_exit import trimmed
from lessons_lib.measure.clock import Ratio, Samples, rate_ratio
from lessons_lib.measure.cost import early_exit_cost
from lessons_lib.models import read_card
from lessons_lib.models.exits import LAYERSKIP
from lessons_lib.models.hub import FINE_TUNED
from lessons_lib.progress import bar
from lessons_lib.training.collect import Text, frequent
from lessons_lib.training.evaluate import right_at_exits
from lessons_lib.training.evaluate import tokens_per_pass as counted_tokens
from lessons_lib.training.text_to_sql import encode, text_to_sql

FOUR = 4  # draft tokens per step, where their number is fixed
EXITS = range(2, 30)  # exit layers to choose from
EARLY = 10  # the last exit layer that counts for tokens per pass
MOST = 8  # longest draft
ADAPTIVE = (4, 6, 8, 10)  # exits of which every step chooses one by itself
SHORT = 8192  # ids of the draft vocabulary
CHOSEN_ON, MEASURED_ON, LEARNED_FROM = 40, 30, 2_000  # examples of the splits validation, test and train
ANSWER = 64  # longest answer
UNTRAINED_ON, WRITTEN = 10, 16  # test examples for the model before its training, and tokens of each answer
CACHED = 100  # cached tokens when one forward pass is timed
ASKED = "text-to-SQL, 30 examples of tables that training has not seen"
RESAMPLED = "interval: from resampling the texts, one run each"


@cache
def model():
    """The fine-tuned model on the CPU in DTYPE."""
    return load(LAYERSKIP, device="cpu", dtype=DTYPE)


@cache
def target():
    """Its readable decoder, eager."""
    return model().target()


@cache
def vocabulary():
    """Ids (K,) of the draft vocabulary: the most frequent ones of the training texts."""
    texts = encode(model().tokenizer, text_to_sql(LEARNED_FROM))
    return frequent(texts, target().vocab_size, SHORT)


def answer(ids: Sequence[int]) -> list[int]:
    """Plain decoding's answer without its end token."""
    new = generate(target(), ids, max_new_tokens=ANSWER).ids
    return new[:-1] if new[-1] in target().eos else new


@cache
def settings(run: Run) -> dict:
    """For the whole head (full) and the draft vocabulary (trimmed): the exit layer and draft length to use, and the
    prediction.

    four: the exit that gives the most tokens per pass with FOUR draft tokens. v: the width curve. speed: the predicted
    speedup over plain decoding.
    """
    # which tokens every exit gets right, along plain decoding's answers to other questions
    texts = []
    for number, text in enumerate(encode(model().tokenizer, text_to_sql(few(run, CHOSEN_ON), "validation"))):
        prompt = text.ids[: text.prompt_length]
        texts.append(Text(f"validation/{number}", [*prompt, *answer(prompt)], len(prompt)))
    v = costs_of(target(), range(1, MOST + 2), 5 * run.repeats, CACHED)
    found = {"weights": fingerprint(model().network), "vocabulary": len(vocabulary()), "v": v, "texts": len(texts)}
    # the fastest by the cost model
    whole, short = target().decoder, trimmed(target().decoder, vocabulary())
    for name, decoder, rows in (("full", whole, None), ("trimmed", short, len(vocabulary()))):
        hits = [right_at_exits(decoder, text, EXITS) for text in texts]
        right = {layer: [of[layer] for of in hits] for layer in EXITS}
        costs = {layer: early_exit_cost(model().shape, layer, v, rows) for layer in EXITS}
        layer, gamma = best_exit(right, costs, MOST)
        tau = {layer: [counted_tokens(right[layer], gamma) for gamma in range(1, MOST + 1)] for layer in EXITS}
        speed = replayed_speed(right[layer], gamma, costs[layer])
        found[name] = {"exit_layer": layer, "gamma": gamma, "c": costs[layer].draft, "tau": tau, "speed": speed}
    early = [layer for layer in EXITS if layer <= EARLY]
    found["four"] = max(early, key=lambda layer: found["full"]["tau"][layer][FOUR - 1])
    return found


def few(run: Run, count: int) -> int:
    """The number of examples to use: fewer in a quick run."""
    return max(2, count // 5) if run.quick else count


def proposers(run: Run) -> dict[str, EarlyExit]:
    """The proposers that are measured."""
    chosen = settings(run)
    made = {name: (chosen[name]["exit_layer"], chosen[name]["gamma"]) for name in ("full", "trimmed")}
    return {
        "four": EarlyExit(chosen["four"], FOUR),
        "full": EarlyExit(*made["full"]),
        "trimmed": EarlyExit(*made["trimmed"], vocabulary=vocabulary()),
        "adaptive": adaptive(run),
    }


@cache
def adaptive(run: Run) -> EarlyExit:
    """Exit layer and draft length chosen at every step. One for all texts, since it learns from one to the next."""
    costs = {layer: early_exit_cost(model().shape, layer, settings(run)["v"], len(vocabulary())) for layer in ADAPTIVE}
    schedules = {layer: Adaptive(cost.draft, cost.v, MOST) for layer, cost in costs.items()}
    return EarlyExit(schedules, vocabulary=vocabulary())


def methods(run: Run, ids: Sequence[int], new: int, passes: dict[str, list[int]]) -> dict[str, Callable[[], Made]]:
    """Every method for `new` tokens after these ids: ours, and transformers' with its own plain decoding beside.

    passes: gets the forward passes of transformers' form, those of all layers and those of the first ones.
    """

    def ours(proposer: EarlyExit | None) -> Made:
        out = generate(target(), ids, proposer, max_new_tokens=new, min_new_tokens=new)
        return out.ids, out.stats

    def theirs(name: str, gamma: int | None) -> Made:
        made = by_early_exit(model().network, ids, new, settings(run)["full"]["exit_layer"], gamma)
        passes[f"{name}, passes"] = [made.passes, made.draft_passes]
        return made.ids, []

    found = {"plain": partial(ours, None)} | {name: partial(ours, by) for name, by in proposers(run).items()}
    return found | {
        "plain theirs": lambda: (by_transformers(model().network, ids, new), []),
        "theirs": partial(theirs, "theirs", settings(run)["full"]["gamma"]),
        "theirs by default": partial(theirs, "theirs by default", None),
    }


@cache
def rows(run: Run) -> list[dict]:
    """A row for each test example."""
    for warm_up in methods(run, list(range(10, 42)), 8, {}).values():
        warm_up()
    adaptive.cache_clear()  # forget what it learned while warming up
    found = []
    examples = text_to_sql(few(run, MEASURED_ON), "test")
    for number, example in enumerate(bar(examples, desc="text-to-SQL", unit="question")):
        ids = model().tokenizer(example.prompt).input_ids
        new = answer(ids)  # also serves as warm-up
        passes = {}
        made = each_method(target(), ids, methods(run, ids, len(new), passes), backwards=number % 2 == 1)
        found.append({"question_id": number, "category": example.family} | made | passes)
    return found


def before_training(run: Run) -> float:
    """Speed of transformers' form over its plain decoding, for the same model before its training; whole requests."""
    network, chosen = load(FINE_TUNED[LAYERSKIP], device="cpu", dtype=DTYPE).network, settings(run)["full"]
    by_transformers(network, [1], 4)  # warms up
    seconds = {"plain": 0.0, "early exit": 0.0}
    for number, example in enumerate(text_to_sql(few(run, UNTRAINED_ON), "test")):
        ids = model().tokenizer(example.prompt).input_ids
        ways = {
            "plain": partial(by_transformers, network, ids, WRITTEN),
            "early exit": partial(by_early_exit, network, ids, WRITTEN, chosen["exit_layer"], chosen["gamma"]),
        }
        for name in list(ways)[:: 1 - 2 * (number % 2)]:  # they take turns
            since = perf_counter()
            ways[name]()
            seconds[name] += perf_counter() - since
    return seconds["plain"] / seconds["early exit"]


def facts_of(run: Run) -> dict:
    """What all claims store beside their samples."""
    return {"settings": settings(run), "parted": differing(rows(run)), "questions": rows(run)}


@claim(
    "layerskip/tokens-per-pass", ">= 3.0",
    f"plain decoding (1 token per pass); greedy, eager {DTYPE}, {FOUR} draft tokens per step from the best exit of at "
    f"most {EARLY} layers, counted; {ASKED}",
    says=f"With {FOUR} draft tokens from its own first layers, a forward pass of the fine-tuned model gives "
    "{number} tokens",
    unit="tokens",
)  # fmt: skip
def tokens(run: Run) -> Measured:
    found, chosen = rows(run), settings(run)
    tau = {kind: tokens_per_pass(of, "four") for kind, of in questions.by_category(found).items()}
    expected = chosen["full"]["tau"][chosen["four"]][FOUR - 1]
    note = (
        f"exit after {chosen['four']} layers, {expected:.2f} on the texts it was chosen on; {listed(tau)}; {RESAMPLED}"
    )
    return Measured(mean_rate([in_steps(found, "four")]), note, facts_of(run) | {"unit": "passes per token"})


@claim(
    "layerskip/vs-plain", ">= 1.3",
    f"plain: greedy on the eager {DTYPE} DecoderTarget of the same fine-tuned model; speed of decoding, prefill left "
    f"out; whole head or draft vocabulary, exit layer and draft length chosen by the cost model; {ASKED}",
    says="Drafting with its own first layers makes the fine-tuned model decode {times} as fast as plain decoding",
)  # fmt: skip
def vs_plain(run: Run) -> Measured:
    found, chosen = rows(run), settings(run)
    predicted = {name: chosen[name]["speed"] for name in ("full", "trimmed")}
    ratios = {name: rate_ratio(decoding(found, "plain"), decoding(found, name)) for name in predicted}
    said = {"full": "whole head", "trimmed": f"draft vocabulary of {chosen['vocabulary']}"}
    notes = [
        f"{said[name]}: {ratios[name].value:.2f}, predicted {predicted[name]:.2f}, with {chosen[name]['exit_layer']} "
        f"layers, {chosen[name]['gamma']} draft tokens and "
        f"{tokens_per_pass(found, name):.2f} tokens per pass"
        for name in ratios
    ]
    best = max(predicted, key=predicted.get)  # chosen by the prediction, not by the measurement
    tau = {kind: tokens_per_pass(of, best) for kind, of in questions.by_category(found).items()}
    every_step = rate_ratio(decoding(found, "plain"), decoding(found, "adaptive"))
    notes.append(
        f"the same vocabulary, exit ({', '.join(map(str, ADAPTIVE))}) and draft length chosen at every step, "
        f"learning from one text to the next: "
        f"{every_step.value:.2f} with {tokens_per_pass(found, 'adaptive'):.2f} tokens per pass"
    )
    measured = {name: [of.value, of.low, of.high] for name, of in ratios.items()}
    facts = {"tokens_per_pass": tau, "predicted": predicted, "measured": measured}
    facts["adaptive"] = [every_step.value, every_step.low, every_step.high]
    return Measured(ratios[best], "; ".join([*notes, RESAMPLED]), facts_of(run) | facts)


@claim(
    "layerskip/vs-transformers", ">= 1.2",
    f"transformers generate(assistant_early_exit=), {DTYPE}, eager, at the same exit layer and draft length, constant, "
    f"no confidence threshold; ours: EarlyExit with the whole head on a DecoderTarget; whole "
    f"requests; {ASKED}",
    says="LayerSkip with one cache is {times} as fast as transformers' early exit (same exit layer and draft length)",
)  # fmt: skip
def vs_transformers(run: Run) -> Measured:
    found, chosen = rows(run), settings(run)["full"]
    slower = {name: speed(found, "plain theirs", name).value for name in ("theirs", "theirs by default")}
    slower["before training"] = before_training(run)
    full, early = (sum(row["theirs, passes"][i] for row in found) for i in (0, 1))
    written = sum(row["theirs"]["tokens"] for row in found)
    form = f"{slower['theirs']:.2f}, with its defaults (20 tokens, threshold 0.4) {slower['theirs by default']:.2f}"
    note = (
        f"{chosen['exit_layer']} layers, {chosen['gamma']} draft tokens; transformers' form over its plain decoding "
        f"{form}, before the model's training {slower['before training']:.2f}; ours over ours "
        f"{speed(found, 'plain', 'full').value:.2f}; tokens per pass: theirs {written / full:.2f} with "
        f"{early / full:.2f} draft passes each, ours {tokens_per_pass(found, 'full'):.2f}; {RESAMPLED}"
    )
    return Measured(speed(found, "theirs", "full"), note, facts_of(run) | {"theirs_over_plain": slower})


@claim(
    "layerskip/quality", "<= 1.0",
    "fine-tuning of as many steps without layer dropout and early exits; points of exact match of the last layer, "
    "greedy, 2,000 test examples, paired",
    says="On text-to-SQL, an easy task, LayerSkip's training lowers the last layer's exact match by {number} points",
    unit="points",
)  # fmt: skip
def quality(run: Run) -> Measured:
    """From the weights' card: both runs were evaluated after training, and only one of them is stored."""
    card = read_card(LAYERSKIP)
    found, lost = card["test"], card["quality"]
    shares = {name: found[name]["exact_match"] for name in ("layerskip", "control")}
    pair = [Samples((100 * shares[name][-1],)) for name in ("control", "layerskip")]
    note = "exact match by exit layer, %: " + "; ".join(
        f"{name} " + ", ".join(f"{layer}: {100 * of[layer - 1]:.2f}" for layer in (6, 10, 15, 20, 30))
        for name, of in {
            "base": found["base"]["exact_match"],
            "ours": shares["layerskip"],
            "control": shares["control"],
        }.items()
    )
    hard = {name: 100 * card["hard"][name]["exact_match"][-1] for name in ("layerskip", "control")}
    note += f"; where values are random strings, ours {hard['layerskip']:.1f}, control {hard['control']:.1f}"
    note += f"; {lost['texts']} texts; both were evaluated in float32 on an H200, after their training"
    note += "; interval: paired by text, by the rule of three where none differs"
    note += "; an earlier recipe lost 1.8 points and was replaced"
    low, high = lost["low"], lost["high"]
    if low == high == 0:  # no text differs, so resampling says nothing: rule of three, in points
        low, high = -300 / lost["texts"], 300 / lost["texts"]
    return Measured(Ratio(lost["value"], low, high, *pair), note, {"quality": lost, "unit": "%"})
