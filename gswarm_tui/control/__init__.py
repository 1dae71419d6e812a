"""The private socket on which a running head runs queries and takes marks for its user's commands."""
