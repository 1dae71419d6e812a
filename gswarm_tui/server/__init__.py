"""Servers on a recorder, for other programs and for browsers: processes that follow it as viewers do.

Libraries of the extra ``[server]`` are imported only in those processes.
"""
