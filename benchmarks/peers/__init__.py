"""Other engines: how each is had and started, and in `*_program.py` what runs in an environment of its own."""
