"""HTTP server on a recorder: a process of its own that follows it as a viewer does, see ``process.py``.

Libraries of the extra ``[server]`` are imported only in that process.
"""
