"""Databases of earlier schemas, with executions in every state: they are migrated, and everything in them is finished.

`states` says what is in them, `make` made them (`python -m tests.upgrade.make`), and they are kept in `tests/fixtures`
for ever: a fixture is never made again, only others are added. `test_upgrade` opens all that there are.
"""
