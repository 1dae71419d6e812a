"""Code shared by all rooms: errors, quantities, units, colours, the history of queries."""
