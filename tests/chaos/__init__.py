"""Chaos: processes under load are killed, frozen and told to go, and so is their database. Afterwards all is right.

`programs` is what they run, `outside` remembers every effect, `roles` are the processes: workers, submitters, people.
`troupe` starts and hurts them, `faults` says when, by a seed. `places` are the databases, `images` are copies of a file
that is being written. `run` plays one run, `verdict` says what is wrong with what it left, `figures` what it was.
"""
