"""`python -m tenuto` is the command `tenuto`."""

import sys

from .cli import main

sys.exit(main())
