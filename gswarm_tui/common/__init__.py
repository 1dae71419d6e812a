"""What every room uses: errors, quantities, units, colours, the history of queries."""
