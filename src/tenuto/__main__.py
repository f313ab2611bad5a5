"""`python -m tenuto` is the command `tenuto`."""

import sys

from tenuto.cli import main

sys.exit(main())
