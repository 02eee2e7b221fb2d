"""``python -m runner``."""

import os
import sys

if sys.argv[1:2] == ["status"]:
    # Asked while something is measured: behind everything else, and without the libraries of tables and figures.
    os.nice(19)
    from runner.status import main
else:
    from runner.cli import main

sys.exit(main())
