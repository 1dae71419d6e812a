"""Ways to start an agent on a node and talk to it: SSH, srun, local processes, simulated nodes."""
