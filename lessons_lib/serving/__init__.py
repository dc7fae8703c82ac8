"""Serving many requests at once (lesson 05): one scheduler and one block pool, a simulator and a real engine.

Nothing is imported here: take the module you need, as in `from lessons_lib.serving.scheduler import Scheduler`.

workload            requests (request) with lengths and arrivals, from a seed or a file
scheduler           which of them the next forward works on; policies say in which order, limits what cannot work
plan                what a forward is to do, and the log of what it did
pool, block_pool    who owns which block: counted alone, and with shared prefixes
loop                arrive, schedule, run, commit, on one of two backends:
simulator           a cost_model for a GPU and a number for a clock
engine              the real model on paged caches: target, compiled in compiled
metrics             latencies and occupancy of a run
published           a published study, simulated
client, stream      the same requests sent to any OpenAI-compatible server
peers               the same requests served by transformers

Only engine, target, compiled and peers need torch.
"""
