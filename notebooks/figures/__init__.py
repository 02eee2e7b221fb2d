"""The logic behind the notebooks: reading a run's table, drawing the paper's figures, tables of what was measured."""
