"""The recipes of smol-draft, smol-medusa and smol-layerskip: `python -m lessons_lib.training PART`.

part                     what it does
-----------------------  ------------------------------------------------------------------------------------
collect                  generates the target's answers to prompts, which draft and heads train on; resumable
distill                  trains a draft model, or continues a run
evaluate                 evaluates a run's draft on held-out texts
export                   stores a run's draft with the package
heads                    trains Medusa heads, or continues a run
heads-evaluate           evaluates a run's heads; the tree is chosen on validation texts
heads-export             stores a run's heads with the package
layerskip                fine-tunes the model on text-to-SQL with layer dropout and early-exit loss
layerskip-exit           trains an adapter for one exit of the unchanged model, on texts that it writes
layerskip-evaluate       evaluates every exit of a run, or of the base model
layerskip-exit-evaluate  evaluates a run's exit adapter
layerskip-export         stores the evaluated runs with the package

A folder of weights also has a README.md, which is written by hand from card.json.
"""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

from lessons_lib.data import RESULTS
from lessons_lib.decoding.proposers.medusa import MedusaHeads, load_heads, save_heads
from lessons_lib.decoding.proposers.tree_shape import best_tree
from lessons_lib.models import LanguageModel, load, pick
from lessons_lib.models.decoder import Decoder
from lessons_lib.models.draft import decoder_of, load_draft, save_draft
from lessons_lib.models.exits import LAYERSKIP, ExitAdapter, save_layerskip
from lessons_lib.models.store import ModelUnavailable
from lessons_lib.models.trained import OURS
from lessons_lib.quantization import quantize_model
from lessons_lib.training import collect, distill, evaluate, exit_adapter, layerskip, medusa, prompts
from lessons_lib.training.collect import Text
from lessons_lib.training.exit_adapter import ExitRecipe
from lessons_lib.training.layerskip import LayerSkipRecipe
from lessons_lib.training.loop import TrainingRun, folder_of, written
from lessons_lib.training.medusa import HeadsRecipe, judge, split
from lessons_lib.training.text_to_sql import SIZES, encode, text_to_sql

TARGET, DRAFT, HEADS = "smollm2-135m", "smol-draft", "smol-medusa"
USED = "W8A16"  # dtype in which a draft is used
EXIT, BASE = "smol-layerskip-exit", "base"
HARD = 500  # hard examples to evaluate with
NODES = 16  # nodes of the tree for evaluation; lesson 09 chooses by the machine's width curve


def main(arguments: list[str] | None = None) -> int:
    """Run one part of the recipes and return the exit status: 2, with a message, if input or model are invalid."""
    options = parser().parse_args(arguments)
    try:
        options.run_part(options)
    except (ValueError, ModelUnavailable) as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nstopped; training and collecting go on from what they have saved", file=sys.stderr)
        return 130
    return 0


def parser() -> argparse.ArgumentParser:
    """Command-line parser of all parts."""
    table = argparse.RawDescriptionHelpFormatter
    top = argparse.ArgumentParser(prog="python -m lessons_lib.training", description=__doc__, formatter_class=table)
    parts = top.add_subparsers(required=True, metavar="PART")

    part = add_part(parts, "collect", run_collect)
    part.add_argument("--prompts", type=Path, help="JSON lines with id, kind, prompt, context, to train on")
    part.add_argument("--held-out", action="store_true", help="answer our held-out prompts, greedily, instead")
    part.add_argument("--texts", type=int, help="stop at so many (default: all prompts)")
    part.add_argument("--device", default="cpu", help="cpu, cuda or auto")

    add_training(parts, "distill", run_distill, distill.Recipe)
    add_training(parts, "heads", run_heads, HeadsRecipe)
    for name, run in (("evaluate", run_evaluate), ("heads-evaluate", run_heads_evaluate)):
        add_part(parts, name, run).add_argument("--run", default="default")
    for name, run, stored in (("export", run_export, DRAFT), ("heads-export", run_heads_export, HEADS)):
        part = add_part(parts, name, run)
        part.add_argument("--run", default="default")
        part.add_argument("--into", type=Path, default=OURS / stored)

    add_training(parts, "layerskip", run_layerskip, LayerSkipRecipe)
    add_training(parts, "layerskip-exit", run_layerskip_exit, ExitRecipe)
    part = add_part(parts, "layerskip-evaluate", run_layerskip_evaluate)
    part.add_argument("--run", default="default", help=f'"{BASE}" is the model without adapters')
    part.add_argument("--texts", type=int, default=SIZES["test"], help="test examples")
    add_results(part)
    part = add_part(parts, "layerskip-exit-evaluate", run_layerskip_exit_evaluate)
    part.add_argument("--run", default="default")
    add_results(part)
    part = add_part(parts, "layerskip-export", run_layerskip_export)
    part.add_argument("--results", type=Path, required=True, help="folder of the evaluations")
    part.add_argument("--run", default="default", help="the run to store")
    part.add_argument("--control", default="control", help="the run without dropout and exits to compare with")
    part.add_argument("--into", type=Path, default=OURS / LAYERSKIP)
    raw = RESULTS / "layerskip-training.json"
    part.add_argument("--raw", type=Path, default=raw, help="all evaluations, in one file")
    return top


def add_part(parts, name: str, run: Callable[[argparse.Namespace], None]) -> argparse.ArgumentParser:
    """Add a part that run(options) does."""
    part = parts.add_parser(name, description=run.__doc__)
    part.set_defaults(run_part=run)
    return part


def add_training(parts, name: str, run: Callable[[argparse.Namespace], None], recipe: type) -> None:
    """Add a part that trains, whose options are the fields of the recipe."""
    part = add_part(parts, name, run)
    part.add_argument("--run", default="default", help="name of this training run")
    part.add_argument("--minutes", type=float, help="stop after so long, with a checkpoint to go on from")
    part.add_argument("--device", default="auto", help="cpu, cuda or auto")
    for field in fields(recipe):
        several = {"nargs": "+", "type": int} if isinstance(field.default, tuple) else {"type": type(field.default)}
        part.add_argument(f"--{field.name}", default=field.default, **several)


def add_results(part: argparse.ArgumentParser) -> None:
    """Add the options of an evaluation that writes into a folder."""
    part.add_argument("--results", type=Path, required=True, help="folder to write to")
    part.add_argument("--device", default="auto", help="cpu, cuda or auto")


def recipe_of(options: argparse.Namespace, recipe: type):
    """Build a recipe from the command-line options."""
    spelt = {field.name: getattr(options, field.name) for field in fields(recipe)}
    return recipe(**{name: tuple(value) if isinstance(value, list) else value for name, value in spelt.items()})


def run_collect(options: argparse.Namespace) -> None:
    """Generate the target's answers into the cache folder."""
    if options.held_out:
        chosen, longest, sampled = prompts.held_out(), prompts.LONGEST_HELD_OUT, 0
    elif options.prompts:
        people = prompts.for_training(prompts.read(options.prompts))
        chosen, longest, sampled = people + prompts.again(people) + prompts.own(), prompts.LONGEST, collect.SAMPLED
    else:
        raise ValueError("which prompts? --prompts FILE names those to train on, --held-out takes ours")
    into, model = collect.folder(options.held_out), load(TARGET, device=options.device)
    chosen = prompts.interleave(chosen)
    count = collect.collect(model, chosen, into, options.texts, longest=longest, sampled=sampled)
    print(f"{count} texts in {into}")


# --- The draft


def run_distill(options: argparse.Namespace) -> None:
    """Train a draft, or continue a run; matmuls in bf16 where the device has native bf16."""
    recipe, folder = recipe_of(options, distill.Recipe), folder_of(DRAFT, options.run)
    texts, fast = collect.training_texts(), has_bf16(options.device)
    report(distill.distill(target(options.device), texts, recipe, folder, options.minutes, fast=fast), folder)


def report(run: TrainingRun, folder: Path) -> None:
    """Print the progress of a run."""
    print(f"{run.step} of {run.recipe.steps} steps, {json.dumps(run.curve[-1])}; {folder}")


def run_evaluate(options: argparse.Namespace) -> None:
    """Print the evaluation of a run's draft."""
    draft = distill.trained(target(), folder_of(DRAFT, options.run)).draft
    print(json.dumps(evaluate.evaluate(draft, collect.held_out_texts()), indent=1))


def run_export(options: argparse.Namespace) -> None:
    """Store a run's draft. Its card holds the evaluation of the stored, rounded weights."""
    texts, run = collect.held_out_texts(), distill.trained(target(), folder_of(DRAFT, options.run))
    untrained = distill.fresh(target(), run.recipe, run.draft.kept).draft
    save_draft(run.draft, options.into, TARGET)
    network = load_draft(options.into, load(TARGET, device="cpu", dtype="bf16").network)
    stored = quantize_model(decoder_of(network), USED)
    facts = facts_of(run) | {
        "before": evaluate.evaluate(untrained, texts),
        "after": evaluate.evaluate(stored, texts),
        "curve": run.curve[:: max(1, len(run.curve) // 200)],
    }
    save_draft(run.draft, options.into, TARGET, **facts)
    print(f"stored in {options.into}")


def facts_of(run: TrainingRun) -> dict:
    """Entries of a card that any run has."""
    texts = len(collect.training_texts())
    return {"recipe": asdict(run.recipe), "steps": run.step, "hours": run.seconds / 3600, "texts": texts}


def target(device: str = "cpu") -> Decoder:
    """The target in float32, from which drafts are initialised."""
    return load(TARGET, device=device, dtype="fp32").target(kind="decoder").decoder


# --- Medusa heads


def run_heads(options: argparse.Namespace) -> None:
    """Train a run of heads, or continue it."""
    recipe, folder = recipe_of(options, HeadsRecipe), folder_of(HEADS, options.run)
    texts = collect.training_texts()
    report(medusa.train_heads(lm_head(options.device), texts, recipe, folder, options.minutes), folder)


def run_heads_evaluate(options: argparse.Namespace) -> None:
    """Print the evaluation of a run's heads."""
    print(json.dumps(worth(medusa.trained(lm_head(), folder_of(HEADS, options.run)).heads), indent=1))


def run_heads_export(options: argparse.Namespace) -> None:
    """Store a run's heads. Their card holds the evaluation of the stored, rounded weights."""
    run = medusa.trained(lm_head(), folder_of(HEADS, options.run))
    before = worth(medusa.fresh(lm_head(), run.recipe, run.heads.kept).heads)
    save_heads(run.heads, options.into, TARGET)
    after = worth(load_heads(options.into, model()))
    curve = [row for row in run.curve if "top1" in row]
    facts = facts_of(run) | {"run": options.run, "before": before, "after": after, "curve": curve}
    save_heads(run.heads, options.into, TARGET, **facts)
    print(f"stored in {options.into}")


def worth(heads: MedusaHeads) -> dict:
    """Accuracies and the best tree on validation texts, with its predicted and its held-out tokens per pass."""
    heads = heads.to(heads.lm_head.dtype)  # the dtype used for decoding
    held = [text for text in split(collect.training_texts())[1] if text.temperature == 0]
    accuracies = judge(heads, held)["accuracies"]
    tree = best_tree(accuracies, NODES)
    return evaluate.evaluate_heads(heads, collect.held_out_texts(), tree) | {
        "expected": tree.expected_tokens(accuracies),
        "accuracies": accuracies,
        "choices": [list(choice) for choice in tree.choices],
    }


def model(device: str = "cpu") -> LanguageModel:
    """The target in bf16 where the device has native bf16, else in fp32."""
    return load(TARGET, device=device, dtype="bf16" if has_bf16(device) else "fp32")


def has_bf16(device: str) -> bool:
    """Whether the device has native bf16. fp16 would lose small gradients."""
    return pick(device, "auto")[1] == "bf16"


def lm_head(device: str = "cpu") -> Tensor:
    """The model's LM head (V, D), which the Medusa heads share."""
    return model(device).network.get_output_embeddings().weight


# --- LayerSkip


def run_layerskip(options: argparse.Namespace) -> None:
    """Train a run of adapters, or continue it. Matmuls are in bf16 where the device has native bf16."""
    recipe, folder = recipe_of(options, LayerSkipRecipe), folder_of(LAYERSKIP, options.run)
    exact, fast = load(TARGET, device=options.device, dtype="fp32"), has_bf16(options.device)
    texts, decoder = encode(exact.tokenizer, text_to_sql(SIZES["train"])), exact.target(kind="decoder").decoder
    report(layerskip.train_layerskip(decoder, texts, recipe, folder, options.minutes, fast=fast), folder)


def run_layerskip_evaluate(options: argparse.Namespace) -> None:
    """Write the quality of every exit, and a run's adapters, into a folder."""
    found, exact = {"run": options.run, "device": options.device}, load(TARGET, device=options.device, dtype="fp32")
    decoder = exact.target(kind="decoder").decoder
    if options.run != BASE:
        run = layerskip.trained(decoder, folder_of(LAYERSKIP, options.run))
        check_finished(options.run, run)
        decoder, found = run.model, found | record_of(run)
    options.results.mkdir(parents=True, exist_ok=True)  # before hours of work
    # every exit on examples of tables that training has not seen
    parts = {
        "test": text_to_sql(options.texts, "test"),
        "validation": text_to_sql(min(options.texts, SIZES["validation"]), "validation"),
        "hard": text_to_sql(min(options.texts, HARD), "test", hard=True),
    }
    for name, examples in parts.items():
        found[name] = layerskip.evaluate_exits(decoder, encode(exact.tokenizer, examples))
        print(f"{options.run}, {name}: exact match {found[name]['exact_match'][-1]:.3f}", flush=True)
    if options.run != BASE:
        write_tensors(run.weights, options.results / f"{options.run}.safetensors")
    write_json(found, options.results / f"{options.run}.json")


def check_finished(name: str, run: TrainingRun) -> None:
    """Raise ValueError if a run has not taken all steps of its recipe."""
    if run.step < run.recipe.steps:
        raise ValueError(f"run {name} has taken {run.step} of {run.recipe.steps} steps; train it to its end first")


def record_of(run: TrainingRun) -> dict:
    """What the file of an evaluation says about the training."""
    return {"recipe": asdict(run.recipe), "steps": run.step, "seconds": run.seconds, "curve": run.curve}


def run_layerskip_exit(options: argparse.Namespace) -> None:
    """Train an exit adapter, or continue its run."""
    recipe, folder = recipe_of(options, ExitRecipe), folder_of(EXIT, options.run)
    ours = model(options.device)
    texts, _ = exit_texts(recipe, folder, ours)
    decoder = ours.target(kind="decoder").decoder
    report(exit_adapter.train_exit(decoder, texts, recipe, folder, options.minutes), folder)


def exit_texts(recipe: ExitRecipe, folder: Path, of: LanguageModel) -> tuple[list[Text], list[Text]]:
    """The model's answers to our prompts: those to train an exit with, and those to evaluate it."""
    turns = prompts.own()
    if not 1 <= recipe.prompts <= len(turns):
        raise ValueError(f"prompts={recipe.prompts} is no number of our prompts; choose from 1 to {len(turns)}")
    turns = [turns[n * len(turns) // recipe.prompts] for n in range(recipe.prompts)]  # they are in order of topic
    answers = exit_adapter.stored_texts(
        folder, recipe, lambda: exit_adapter.own_texts(of, turns, recipe.copies, recipe.seed)
    )
    return split(answers)


def run_layerskip_exit_evaluate(options: argparse.Namespace) -> None:
    """Write the quality of an exit with and without its adapter, and the adapter, into a folder."""
    folder, ours = folder_of(EXIT, options.run), model(options.device)
    decoder = ours.target(kind="decoder").decoder
    run = exit_adapter.trained(decoder, folder)
    recipe = run.recipe
    check_finished(options.run, run)
    options.results.mkdir(parents=True, exist_ok=True)
    texts, held = exit_texts(recipe, folder, ours)
    found = record_of(run) | {"texts": len(texts), "tokens": sum(len(text.ids) for text in texts)}
    states = exit_adapter.answer_states(decoder, held, recipe.exit_layer)
    for name, adapter in (("before", exit_adapter.fresh(decoder, recipe).adapter), ("after", run.adapter)):
        found[name] = exit_adapter.evaluate_exit(decoder, adapter, held, states)
        print(f"exit {adapter.exit_layer}, {name}: agreement {found[name]['agreement']:.3f}", flush=True)
    write_tensors(run.weights, options.results / "exit.safetensors")
    write_json(found, options.results / "exit.json")


def run_layerskip_export(options: argparse.Namespace) -> None:
    """Store LoRA matrices and exit adapter in bf16, their card with the evaluations, and those with all curves.

    Raises ValueError if the control is none to the run.
    """
    names = {"base": BASE, "layerskip": options.run, "control": options.control, "exit": "exit"}
    found = {name: read_json(options.results / f"{file}.json") for name, file in names.items()}
    ours, of_exit = found["layerskip"], found.pop("exit")
    alone = {"p_max": 0.0, "curriculum": "last"}  # what a control has of its own
    if ours["recipe"] | alone != found["control"]["recipe"] | alone:
        raise ValueError(f"train run {options.control} with run {options.run}'s options, all but p_max and curriculum")
    weights = load_file(options.results / "exit.safetensors")
    adapter = ExitAdapter(weights["W1"].shape[1], of_exit["recipe"]["exit_layer"])
    adapter.load_state_dict(weights)
    facts = {"recipe": ours["recipe"], "steps": ours["steps"], "hours": ours["seconds"] / 3600}
    for part in ("test", "hard"):
        facts[part] = {name: summary(of[part]) for name, of in found.items()}
    facts["quality"] = layerskip.points_lost(ours["test"]["exact"], found["control"]["test"]["exact"])
    facts["exit"] = {name: of_exit[name] for name in of_exit if name != "curve"}
    lora = load_file(options.results / f"{options.run}.safetensors")
    write_json(found | {"exit": of_exit, "quality": facts["quality"]}, options.raw)
    save_layerskip(options.into, lora, ours["recipe"]["rank"], ours["recipe"]["alpha"], adapter, TARGET, **facts)
    print(f"stored in {options.into}")


def summary(found: dict) -> dict:
    """An evaluation without its single texts, rounded."""
    rounded = {name: [round(x, 4) for x in found[name]] for name in ("loss", "accuracy", "agreement", "exact_match")}
    return {"texts": found["texts"], "tokens": found["tokens"], "entropy": round(found["entropy"], 4)} | rounded


def write_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    """Write tensors to a file, atomically."""
    with written(path) as part:
        save_file({name: value.detach().cpu().contiguous() for name, value in tensors.items()}, part)


def write_json(found: dict, path: Path) -> None:
    """Write an evaluation, atomically."""
    with written(path) as part:
        part.write_text(json.dumps(found) + "\n", encoding="utf-8")


def read_json(path: Path) -> dict:
    """Read an evaluation. Raises ValueError if it is not there."""
    if not path.is_file():
        raise ValueError(f"{path} is missing; run `python -m bench.train_layerskip` first")
    return json.loads(path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    sys.exit(main())
