"""The report of a run: one self-contained HTML page and, printed from it, a PDF.

`page` puts it together, from `settings` (all systems side by side), `chapters` (the executed notebooks), `conditions`
(machine, disk, versions, what is missing); `pdf` prints it.
"""

from runner.report.page import Grids, write
from runner.report.pdf import write_pdf

__all__ = ["Grids", "write", "write_pdf"]
