"""Loss of power, on SQLite: a disk that keeps apart what was written and what was synced.

While executions run, images of the disk are taken as a cut would leave it: of what was not synced nothing is there, or
all, or its beginning, or any sectors of it. Each image is opened, checked, and finished by another engine. Whatever was
acknowledged before the cut has to be in it.
"""
