"""Databases of every schema, with executions in every state: they are migrated, and everything in them is finished.

`states`, `later` and `rarer` say what is in them, `make` made them (`python -m tests.upgrade.make`), and they are kept
in `tests/fixtures` for ever. `test_upgrade` opens all that there are.
"""
