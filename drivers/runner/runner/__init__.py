"""Plans, runs, records and judges the trials of an experiment.

The way of a number, module by module:

``yamlfile`` -> ``workload`` (what is wanted) -> ``plan`` (cells, trials, deployments) -> ``resume`` (which run to go on
with; ``identity`` tells code and settings apart) -> ``sweep`` (the order of work; ``deploy`` drives Ansible, ``driver``
drives loadgen) -> ``store`` (run directory) -> ``collect`` (table) -> ``sample`` (the trials of a cell) ->
``predicates`` (what a claim demands), ``checks`` (whether it holds) and ``claims`` (verdicts) -> ``report``.
"""
