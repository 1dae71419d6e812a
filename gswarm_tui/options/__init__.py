"""The command line: arguments, their values and the config file."""
