"""How other commands of the same user talk to a running head: a private socket, for questions and marks."""
