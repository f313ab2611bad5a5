"""The demo: `tenuto dev` with five sagas on one SQLite file, shown while they run. `python -m examples.demo`"""
