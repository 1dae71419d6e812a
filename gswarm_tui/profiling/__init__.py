"""Profiles: reports of Nsight Systems and Nsight Compute and traces of PyTorch, made and imported."""
