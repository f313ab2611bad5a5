"""What an engine promises, said once, against the public API; every runtime keeps the same promises.

A behaviour that is not in here is not a promise. The tests of a requirement name its id (`test_e3_…`), and
`test_coverage_of_requirements.py` sees to it that none is forgotten.
"""
