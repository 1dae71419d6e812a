"""What goes out of recordings and comes into them: the formats that other tools read and write."""
