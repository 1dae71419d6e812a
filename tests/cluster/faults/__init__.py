"""What faults cost: the real program on a real cluster, faults on purpose, and a witness on each node."""
