"""`lessons compare`: which technique makes this model faster here, and by how much."""

import argparse
import json
import os
import shlex
import sys
from datetime import date
from pathlib import Path

from lessons_lib import data
from lessons_lib.cli.common import Refused, add_command, add_model, open_model, refusing, sized
from lessons_lib.cli.generate import as_prompt
from lessons_lib.comparison import Comparison, Engine, Technique
from lessons_lib.data import Question
from lessons_lib.decoding.peers import TransformersGenerate
from lessons_lib.decoding.proposers.draft_model import DraftModel
from lessons_lib.decoding.proposers.lookahead import Lookahead
from lessons_lib.decoding.proposers.prompt_lookup import PromptLookup
from lessons_lib.decoding.targets import Target, Unsupported, as_target
from lessons_lib.decoding.text import encode
from lessons_lib.measure import machine, tables
from lessons_lib.measure.clock import FEWEST_PAIRS
from lessons_lib.models import load
from lessons_lib.models.decoder import computes
from lessons_lib.models.device import dtype_name, out_of_memory
from lessons_lib.models.hub import LanguageModel
from lessons_lib.models.tokenizers import check_same_tokenizer
from lessons_lib.progress import bar, first_line, say
from lessons_lib.quantization.model import FORMATS, W8A8

OWN = (401, 402, 202, 201, 101, 102, 601, 602)  # our questions: two each of code, copying a text, chat and writing
THEIRS = "transformers"
MOST_SHOWN = 8  # prompts of one kind with a column each
EXAMPLES = """
lessons compare
lessons compare --model HuggingFaceTB/SmolLM2-360M-Instruct --draft smollm2-135m --prompts prompts.txt --output out
"""
ABOUT = """
Run techniques in turn on the same prompts, and say which one makes this model faster on this machine: plain decoding,
prompt lookup, lookahead, a draft model, quantized weights where the readable decoder computes the model's family, and
transformers' own generate beside them. Compiling, batching and trained Medusa heads are not measured; `lessons probe`
says how much compiling and batching could gain at most. Where the machine is slow, texts are shortened so that it takes
about --minutes. Ctrl-C ends it and shows what was measured.
"""
LEGEND = """\
times as fast   as plain decoding, while decoding; whole request: with the prompt's forward pass
same tokens     texts equal to plain decoding's; else the first other token, and the logit gap: how far its logit is
                below plain's choice. A gap as small as rounding makes it is a near tie
memory          weights, with tables that go with them, and the KV cache of the longest text; empty where unknown
"""
OF_FORMATS = f"""\
{", ".join(FORMATS)}: bits of weights (W) and activations (A). Rounded weights choose other tokens: check the quality on
                your own task before you use one
"""


def add(commands) -> None:
    """Add the command."""
    command = add_command(commands, "compare", run, "say which technique makes a model faster here", EXAMPLES, ABOUT)
    add_model(command)
    forms = 'one prompt a line; or a JSON line each: "...", {"prompt": "..."} or a question of Spec-Bench (first turn)'
    command.add_argument("--prompts", metavar="FILE", help=f"{forms}; default: eight of the course's own")
    command.add_argument("--draft", metavar="MODEL", help="also draft with this model, of the same tokenizer")
    command.add_argument("--max-new-tokens", type=int, default=128, metavar="N", help="per prompt; default: 128")
    limit = "for the timed runs: what is slow is left out, then texts get shorter; default: 4; 0: no limit"
    command.add_argument("--minutes", type=float, default=4, metavar="M", help=limit)
    command.add_argument("--output", default="comparison", metavar="DIR", help="for plot and JSON; default: comparison")


def run(options: argparse.Namespace) -> int:
    """Measure, then print the table and the recommendation, and write plot and JSON."""
    asked = questions(options.prompts)
    if options.max_new_tokens < 2:
        raise Refused("--max-new-tokens must be at least 2, because speed is that of the tokens after the first.")
    if not options.minutes >= 0:  # nan is not either
        raise Refused("--minutes must be 0 or more; 0 sets no limit.")
    check_writable(Path(options.output))
    model = open_model(options)
    with refusing(options.model):
        target = as_target(model)
        asked, prompts = fitting(model, target, asked, options.max_new_tokens)
        techniques = techniques_of(model, target, options.draft)
        repeats = 1 if len(prompts) > 1 else 3  # an interval needs several runs
        comparison = Comparison(target, prompts, techniques, options.max_new_tokens, repeats)
        print(f"{where(model)}: {len(prompts)} prompts, up to {options.max_new_tokens} new tokens each, greedy")
        if busy := machine.busy_warning():
            say(busy)
        status = measure(comparison, 60 * options.minutes or None)
        if all(row.problem for row in comparison.rows):
            raise Refused("Nothing was measured before the end; let it run longer, or give fewer --prompts.")
        rests_on = few(comparison, options.max_new_tokens, options.minutes)
        advice = " ".join(filter(None, [comparison.recommendation, rests_on, busy]))
        legend = LEGEND + (OF_FORMATS if computes(model.network.config) else "")
        print(f"\n{comparison}\n{legend}")
        if kinds := by_kind(comparison, asked):
            print(f"{tables.text(*kinds)}\n")
        print(f"{advice}\n\n{not_tested(options, model)}\n")
        print(f"Written: {write(comparison, model, advice, Path(options.output), not status)}")
    return status


def questions(path: str | None) -> list[Question]:
    """The prompts of a file, or the course's own."""
    if path is None:
        return [data.question(number) for number in OWN]
    try:
        return data.prompts(path)
    except (OSError, ValueError) as error:
        raise Refused(f"--prompts: {error}") from error


def check_writable(folder: Path) -> None:
    """Refuse, before minutes of measuring, a folder that could not be made or written afterwards."""
    there = next(place for place in (folder, *folder.parents) if os.path.exists(place))
    if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
        raise Refused(f"--output: {there} is no folder that can be written; name another one.")


def fitting(
    model: LanguageModel, target: Target, asked: list[Question], new: int
) -> tuple[list[Question], list[list[int]]]:
    """The questions whose ids leave room for `new` tokens in the model's context, and these ids."""
    ids = [encode(target, as_prompt(model, question.turns[0])) for question in asked]
    kept = [i for i, prompt in enumerate(ids) if len(prompt) + new <= target.context]
    if not kept:
        raise Refused(
            f"No prompt leaves room for {new} new tokens in the context of {target.context}; give shorter --prompts or "
            "a lower --max-new-tokens."
        )
    if left := len(ids) - len(kept):
        say(f"{left} of {len(ids)} prompts do not fit the context of {target.context} and are left out")
    return [asked[i] for i in kept], [ids[i] for i in kept]


def techniques_of(model: LanguageModel, target: Target, draft: str | None) -> dict[str, Technique]:
    """The techniques to compare, plain decoding first. One that cannot be made here gives its reason when it is run."""
    found: dict[str, Technique] = {"plain": None, "prompt lookup": PromptLookup(), "lookahead": Lookahead()}
    if draft:
        small = load(draft, model.device, model.dtype)
        check_same_tokenizer(model.tokenizer, small.tokenizer)
        found[f"draft {draft}"] = DraftModel(small)
    if computes(model.network.config):
        found |= {name: quantized(model, name) for name in bar(FORMATS, desc="quantizing", unit="format")}
    lookup = TransformersGenerate(model, prompt_lookup_num_tokens=10)
    return found | {THEIRS: TransformersGenerate(model), f"{THEIRS}, prompt lookup": lookup}


def quantized(model: LanguageModel, weights: str) -> Technique:
    """The model's decoder with weights in this format."""
    try:
        return model.target(weights=weights, windows=model.calibration_windows() if weights == W8A8 else ())
    except (ValueError, RuntimeError, MemoryError) as error:
        if isinstance(error, RuntimeError) and not out_of_memory(error):
            raise
        return unavailable("out of memory beside the other weights" if out_of_memory(error) else first_line(error))


def unavailable(reason: str) -> Engine:
    """A technique that gives its reason for not running."""

    def refuse(ids, max_new_tokens):
        raise Unsupported(reason)

    return refuse


def measure(comparison: Comparison, seconds: float | None) -> int:
    """Run the comparison in about this time -> the exit status: not 0 if Ctrl-C or a lack of memory ended it early."""
    try:
        for _ in bar(comparison.runs(seconds), total=comparison.total, desc="comparing", unit="run"):
            pass
    except KeyboardInterrupt:
        print("\nstopped; this is what was measured:", file=sys.stderr)
        return 130
    except (RuntimeError, MemoryError) as error:
        if not (out_of_memory(error) and comparison.outputs):
            raise
        print("\nout of memory; this is what was measured:", file=sys.stderr)
        return 1
    return 0


def few(comparison: Comparison, asked: int, minutes: float) -> str:
    """The evidence for the recommendation: the runs of plain decoding that another technique shares."""
    plain = {run[1:] for run in comparison.outputs if run[0] == comparison.first}  # (prompt, repeat)
    shared = plain & {run[1:] for run in comparison.outputs if run[0] != comparison.first} or plain
    prompts = len({prompt for prompt, _ in shared})
    of = "1 prompt" if prompts == 1 else f"{prompts} prompts"
    each = len(shared) // prompts
    runs = "one run" if each == 1 else f"{each} runs"
    said = f"This rests on {of}, {runs} each of up to {comparison.max_new_tokens} tokens"
    said += ", too few for an interval" if len(shared) < FEWEST_PAIRS else ""
    if comparison.max_new_tokens < asked:
        most = max(1, round(comparison.unlimited / 60))
        said += f", because --minutes {minutes:g} allowed no more; --minutes 0 (all, in about {most} "
        return f"{said}{'minute' if most == 1 else 'minutes'}) and more prompts make it firmer."
    return f"{said}; more of your own --prompts make it firmer."


def not_tested(options: argparse.Namespace, model: LanguageModel) -> str:
    """The techniques that this comparison leaves out, and the command that estimates their gain."""
    left = ["compiling", "batches of several requests", "trained Medusa heads"]
    left += [] if options.draft else ["a draft model (name one with --draft)"]
    said = f"Not tested: {', '.join(left)}."
    if model.device.startswith("cuda") and computes(model.network.config):
        said += " Quantized weights are eager here, which can be slower than none on a GPU; compiled as a CUDA graph, "
        said += "W8A16 and W4A16 are faster (lesson 11)."
    if not sized(model):
        return said
    probe = f"lessons probe --model {shlex.quote(options.model)}"
    return f"{said} `{probe}` says how much compiling and batching could gain at most."


def by_kind(comparison: Comparison, asked: list[Question]) -> tables.Table | None:
    """Headings and cells: speedups by kind of text, or by prompt if all are of one kind and few; else None."""
    groups: dict[str, list[int]] = {}
    for i, question in enumerate(asked):
        groups.setdefault(question.category, []).append(i)
    if len(groups) == 1 and 1 < len(asked) <= MOST_SHOWN:
        groups = {f"prompt {i + 1}": [i] for i in range(len(asked))}
    if len(groups) < 2:
        return None
    cells = []
    for row in comparison.rows:
        if row.speedup:
            found = [comparison.row(row.name, of) for of in groups.values()]
            cells.append([row.name, *[f"{one.speedup.value:.2f}" if one and one.speedup else "" for one in found]])
    return ["decoding, times as fast on", *groups], cells


def write(comparison: Comparison, model: LanguageModel, advice: str, folder: Path, complete: bool) -> str:
    """Write comparison.png and comparison.json into the folder -> their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    picture, record = folder / "comparison.png", folder / "comparison.json"
    comparison.plot(where(model)).savefig(picture, dpi=150)
    about = {
        "model": model.name, "dtype": dtype_name(model.dtype), "machine": machine.host(model.device),
        "versions": machine.versions(), "date": date.today().isoformat(), "complete": complete,
        "max_new_tokens": comparison.max_new_tokens, "recommendation": advice,
    }  # fmt: skip
    record.write_text(json.dumps(about | comparison.record(), indent=1) + "\n", encoding="utf-8")
    return f"{picture}, {record}"


def where(model: LanguageModel) -> str:
    """The model, its dtype and its device in words."""
    return f"{model.name} in {dtype_name(model.dtype)} on {machine.device_name(model.device)}"
