"""Serving many requests at once (lesson 05): one scheduler and one block pool, a simulator and a real engine.

Nothing is imported here: take the module you need, as in `from lessons_lib.serving.scheduler import Scheduler`.
request, workload, policies, scheduler, counting_pool, cost_model, loop, simulator, metrics and client need no torch.
"""
