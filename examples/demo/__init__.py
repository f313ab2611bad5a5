"""The demo: four sagas on one SQLite file, shown while they run. `python -m examples.demo`"""
