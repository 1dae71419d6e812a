"""The only code that depends on Textual's private parts; tests/tui/test_textual_internals.py names each."""
