"""The rules, a module for each group of causes."""
