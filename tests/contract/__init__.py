"""The guarantees of an engine, tested once against the public API on every runtime.

A behaviour that is not tested here is not guaranteed.
"""
