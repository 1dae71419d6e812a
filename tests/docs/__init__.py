"""The documentation's generated parts, and tests that the pages are true."""
