"""Tests with real processes: heads on terminals, agents, an sshd on the loopback address."""
