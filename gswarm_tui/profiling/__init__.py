"""Reports of profilers, Nsight Systems and Nsight Compute, as profiles of a recording."""
