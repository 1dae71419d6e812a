"""A model of training jobs in simulated time, independent of the demo, with which the rules are judged."""
