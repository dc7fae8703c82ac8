"""A trial of `lessons serve` at full load: `python -m bench.serve_trial [--requests 1000]`, about five minutes.

Starts the command on a small random model in float64, sends the requests of a workload three times, up to 200 at once
for 16 slots, and checks every answer against `generate`. Half of them are streamed, half are sampled with a seed. The
client drops one in ten, in the middle or before the first token, and one in thirty is over-long. At the end nothing
runs or waits, all blocks are free, the third time took no more memory than the second, and Ctrl-C ends the server.
Exit status 1 otherwise. What came of a thousand requests or more is stored in bench/results/serve-trial.json.
"""

import argparse
import asyncio
import json
import re
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from datetime import date
from random import Random
from tempfile import TemporaryDirectory
from time import perf_counter
from urllib.request import urlopen

import openai
import torch
from prometheus_client.parser import text_string_to_metric_families
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from lessons_lib import Sampling, generate, load
from lessons_lib.data import RESULTS
from lessons_lib.measure import machine
from lessons_lib.models import LanguageModel, tiny
from lessons_lib.progress import bar
from lessons_lib.serving.workload import Exponential, Uniform, Workload

CONTEXT, SLOTS, AT_ONCE, BLOCKS = 512, 16, 200, 96  # fewer blocks than 16 long requests need: some are preempted
MEMORY = "process_resident_memory_bytes"
SHOWN = "num_", "kv_", "prompt_tokens_total", "generation_tokens_total", "request_success_total", MEMORY
FLAT = 10e6  # bytes that the third time may add; the first two fill what Python keeps for later


@dataclass(frozen=True)
class Case:
    """One request. fate: "answered", "dropped" or "over-long". patience: events, or seconds, until it is dropped."""

    prompt: list[int]
    max_tokens: int
    fate: str
    seed: int | None
    stream: bool
    patience: float

    @property
    def body(self) -> dict:
        """Its fields."""
        rest = {"temperature": 0} if self.seed is None else {"temperature": 1.2, "top_p": 0.9, "seed": self.seed}
        return {"prompt": self.prompt, "max_tokens": self.max_tokens, **rest}


def main() -> int:
    """Run the trial; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.serve_trial", description=__doc__.split("\n\n")[0])
    parser.add_argument("--requests", type=int, default=1000)
    count = parser.parse_args().requests
    where = {"date": date.today().isoformat(), "host": machine.host(), "versions": machine.versions()}
    with TemporaryDirectory() as folder:
        save_model(folder)
        model = load(folder, "cpu", "fp64")
        cases = make_cases(count, model)
        expected = expected_texts(cases, model)
        options = ["--model", folder, "--device", "cpu", "--dtype", "fp64", "--port", "0", "--max-num-seqs", SLOTS]
        options += ["--num-blocks", BLOCKS, "--max-num-batched-tokens", 128]
        command = [sys.executable, "-m", "lessons_lib", "serve", *map(str, options)]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            found = re.search(r"http://\S+", server.stdout.readline())
            if not found:  # it has said on stderr why it does not start
                return server.wait(20) or 1
            good, turns = asyncio.run(trial(found[0], folder, cases, expected))
            server.send_signal(signal.SIGINT)
            status = server.wait(20)
            print(f"Ctrl-C ended the server with exit status {status}.")
            ended = {"as it should be": good, "exit status after Ctrl-C": status}
            stored = where | {"requests": count} | ended | {"turns": turns}
            if count >= 1000:
                (RESULTS / "serve-trial.json").write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
        finally:
            server.kill()
    return int(not good or status != 0)


def save_model(folder: str) -> None:
    """A random model of bytes, with an end token."""
    network = tiny(layers=2, width=64, vocab_size=257, context=CONTEXT)
    network.generation_config.eos_token_id = 256
    network.save_pretrained(folder)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate([*letters, "<end>"])}, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(False), decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>").save_pretrained(folder)


def make_cases(count: int, model: LanguageModel) -> list[Case]:
    """The requests of a workload, and what is to happen to each."""
    rng = Random("fates")
    load = Workload(count, Uniform(8, 120), Exponential(48, 192), vocab_size=256).requests()
    cases = []
    for i, request in enumerate(load):
        fate = "dropped" if i % 10 == 3 else "over-long" if i % 30 == 7 else "answered"
        prompt, tokens, stream = request.ids, request.length, rng.random() < 0.5
        if i % 4 == 0:
            prompt = load[0].ids[:64] + prompt  # shares a prefix
        if fate == "over-long":
            prompt = prompt * (CONTEXT // len(prompt) + 1)
        if fate == "dropped":
            tokens = 300
        patience = rng.choice([0, 1, 5, 50]) if stream else rng.choice([0.001, 0.1, 1, 3])
        cases.append(Case(prompt, tokens, fate, i if rng.random() < 0.5 else None, stream, patience))
    return cases


def expected_texts(cases: list[Case], model: LanguageModel) -> list[str | None]:
    """What generate answers, alone."""
    target, texts = model.target(), []
    for case in bar(cases, desc="generate"):
        if case.fate != "answered":
            texts.append(None)
            continue
        sampled = {}
        if case.seed is not None:
            rule, generator = Sampling(1.2, top_p=0.9), torch.Generator().manual_seed(case.seed)
            sampled = dict(acceptance=rule, generator=generator)
        texts.append(generate(target, case.prompt, max_new_tokens=case.max_tokens, **sampled).text)
    return texts


async def trial(url: str, model: str, cases: list[Case], expected: list[str | None]) -> tuple[bool, list[dict]]:
    """Send all cases three times, and print what came of them -> whether all is as it should be, and what came."""
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=None) as client:
        good, memory, turns = True, [], []
        for turn in ("first", "second", "third"):
            start, places = perf_counter(), asyncio.Semaphore(AT_ONCE)
            ends = await asyncio.gather(
                *(ask(client, model, *pair, places) for pair in zip(cases, expected, strict=True))
            )
            seconds, counts = perf_counter() - start, Counter(ends)
            await asyncio.sleep(0.5)
            now = metrics(url)
            memory.append(now[MEMORY])
            print(f"{turn} time: {len(cases)} requests in {seconds:.0f} s: {json.dumps(counts)}")
            print("   " + ", ".join(f"{name} {value:g}" for name, value in now.items()))
            wanted = Counter("answered rightly" if case.fate == "answered" else case.fate for case in cases)
            idle = not (now["num_requests_running"] or now["num_requests_waiting"] or now["kv_cache_usage_perc"])
            good &= counts == wanted and idle
            turns.append({"seconds": round(seconds, 1), "ends": counts, "metrics": now})
    print(f"memory of the server after the third time, against the second: {(memory[2] - memory[1]) / 1e6:+.1f} MB")
    return good and memory[2] - memory[1] < FLAT, turns


async def ask(client: openai.AsyncOpenAI, model: str, case: Case, expected: str | None, places) -> str:
    """Send one request -> what came of it."""
    async with places:
        try:
            text = await (streamed if case.stream else whole)(client, model, case)
        except openai.BadRequestError as error:
            return "over-long" if case.fate == "over-long" and "must fit in 512" in str(error) else f"refused: {error}"
        except Exception as error:  # counted, so that no request is lost in the report
            return f"lost: {error!r} {error.__cause__!r}"
    if case.fate == "dropped":
        return "dropped"
    return "answered rightly" if text == expected else "answered wrongly"


async def streamed(client: openai.AsyncOpenAI, model: str, case: Case) -> str:
    """The text of a stream, which is dropped after `patience` events."""
    text, count, finished = "", 0, False
    async with await client.completions.create(model=model, stream=True, **case.body) as events:
        if case.fate == "dropped" and not case.patience:
            return text
        async for event in events:
            count += 1
            text, finished = text + event.choices[0].text, bool(event.choices[0].finish_reason)
            if case.fate == "dropped" and count >= case.patience:
                return text
    if not finished and case.fate != "dropped":
        raise ValueError("no finish_reason")
    return text


async def whole(client: openai.AsyncOpenAI, model: str, case: Case) -> str:
    """The text of an answer, which is dropped after `patience` seconds."""
    asked = client.completions.create(model=model, **case.body)
    if case.fate != "dropped":
        return (await asked).choices[0].text
    try:
        return (await asyncio.wait_for(asked, case.patience)).choices[0].text
    except TimeoutError:
        return ""


def metrics(url: str) -> dict[str, float]:
    """What the server says about itself now."""
    with urlopen(url.replace("/v1", "/metrics")) as page:
        families = [*text_string_to_metric_families(page.read().decode())]
    samples = [sample for family in families for sample in family.samples]
    named = {
        sample.name.removeprefix("vllm:") + sample.labels.get("finished_reason", ""): sample.value for sample in samples
    }
    return {name: value for name, value in named.items() if name.startswith(SHOWN) and not name.endswith("_created")}


if __name__ == "__main__":
    sys.exit(main())
