"""What the runner knows of each benchmark: its section in a workload, the data it needs, its part of loadgen's spec."""
