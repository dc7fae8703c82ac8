"""Serving many requests at once (lesson 05): one scheduler and one block pool, a simulator and a real engine.

Nothing is imported here: take the module you need, as in `from lessons_lib.serving.scheduler import Scheduler`.
No torch: request, workload, policies, scheduler, pool, cost_model, loop, simulator, metrics and client. With a model:
block_pool's blocks hold keys and values in engine, target and compiled; peers are transformers' own ways to serve.
"""
