"""Screens of the apps, their dialogs, and the interface through which they see the app."""
