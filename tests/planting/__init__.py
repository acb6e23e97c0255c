"""The way in which tests put a fault in front of a function: a fault is what becomes of a call (:mod:`~tests.planting.calls`),
and is planted where calls arrive (:mod:`~tests.planting.places`)."""
