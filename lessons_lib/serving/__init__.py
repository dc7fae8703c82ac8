"""Serving many requests at once (lesson 05): scheduler, block pool, engine, simulator, workloads, client and server."""

from lessons_lib.decoding.sequence import Sequence
from lessons_lib.serving.block_pool import BlockPool
from lessons_lib.serving.client import Server, send
from lessons_lib.serving.engine import Engine
from lessons_lib.serving.peers import continuous_batches, padded_batches
from lessons_lib.serving.scheduler import Continuous, Dynamic, Scheduler, Static
from lessons_lib.serving.simulator import simulate, steps
from lessons_lib.serving.workload import Conversations, Exponential, Poisson, Uniform, Workload

__all__ = [
    "BlockPool",
    "Continuous",
    "Conversations",
    "Dynamic",
    "Engine",
    "Exponential",
    "Poisson",
    "Scheduler",
    "Sequence",
    "Server",
    "Static",
    "Uniform",
    "Workload",
    "continuous_batches",
    "padded_batches",
    "send",
    "simulate",
    "steps",
]
