"""Comparing two runs cell by cell: what became faster or slower, what is the same, what cannot be told, and why.

`cells` matches the cells of both runs and judges each, `differences` says what else differs between the runs, `shown`
writes it all as text, JSON and CSV, `command` is the command line; the figure is `figures.forest`.
"""
