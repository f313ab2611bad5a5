"""Crash points: a real process is killed before and after every commit of a scenario, and another takes over.

`scenarios` says what happens, `world` is the outside that remembers every effect, `child` is the process, `points`
kills it in the right place, `verdict` compares the outside with the record, `harness` runs many of them at a time.
"""
