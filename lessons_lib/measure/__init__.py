"""Measuring: clocks, the hardware probe, the roofline, token timelines, the scorecard and the named claims.

Nothing is imported here: take the module you need, as in `from lessons_lib.measure import clock, roofline`.
shape, roofline, crossing, tables, claims, scorecard need the standard library alone, clock, timeline, speculation
NumPy, the others torch.
"""
