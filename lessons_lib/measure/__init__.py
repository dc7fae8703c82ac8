"""Measuring: clocks, the hardware probe, the roofline, token timelines, the scorecard and the named claims.

Nothing is imported here: take the module you need, as in `from lessons_lib.measure import clock, roofline`.

clock, timeline         callables timed and compared in turn; when each token arrived, and figures made of it
hardware, kernels       what this machine can do, and the kernels that show it
machine, data_sheets    which machine this is, and what vendors print about others
shape, roofline, cost   a model's sizes, the time that they allow, and what is measured and added to it
crossing, speculation   from how many tokens on a technique pays, and what guessing ahead is worth
parts, graphs, memory   a step taken apart, how often it was compiled, how many bytes it holds at most
quality, sparsity, fit  what rounding costs, how many numbers matter, whether counts follow a law
scorecard, tables       what lessons predicted and measured, and how it is shown
claims, evidence        every number boasted of, with its bar, and what each technique is worth

shape, roofline, crossing, data_sheets, graphs, tables, claims, evidence, scorecard need the standard library alone
(graphs torch when it counts), clock, timeline, speculation, parts NumPy (the last torch when it profiles, clock on a
GPU), the others torch.
"""
