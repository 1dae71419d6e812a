"""Many runs: one line for each recording, the catalogue of known ones, finding them, and Dask."""
