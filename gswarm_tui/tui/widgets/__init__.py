"""What screens are made of; everything live is drawn by line."""
