"""The documentation's generated parts, and tests of the pages."""
