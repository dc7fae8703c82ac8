"""Measuring: clocks, the hardware probe, the roofline, token timelines, the scorecard and the named claims.

Nothing is imported here: take the module you need, as in `from lessons_lib.measure import clock, roofline`.
shape, roofline, timeline, scorecard, claims need the standard library alone, clock NumPy, kernels and hardware
torch.
"""
