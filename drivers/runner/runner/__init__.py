"""Plans, runs, records and judges the trials of an experiment.

The way of a number, module by module:

``yamlfile`` -> ``workload`` (what is wanted) -> ``plan`` (cells, trials, deployments) -> ``sweep`` (the order of
work; ``deploy`` drives Ansible, ``driver`` drives loadgen) -> ``store`` (run directory) -> ``collect`` (table)
-> ``claims`` and ``report``.
"""
