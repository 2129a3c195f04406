"""What other agent runtimes cost in the same workloads; see README.md in the folder above."""
