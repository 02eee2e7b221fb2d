"""Interchange with OLTP-Bench, BenchBase (its successor) and H-Store.

*configuration*: their XML, read; *mapping*: a configuration of theirs as a workload of ours, and what of it cannot be
honoured; *formats*: their files of results; *export*: our trials in these files; *results*: their files as a result of
ours; *installation*: an installation of theirs, driven; *foreign*: its trials in a run of ours. Formats are known from
the documentation and the output of these programs; nothing here is code of theirs.
"""
