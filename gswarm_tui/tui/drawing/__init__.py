"""What screens and widgets draw: values to cells, colours and lines of text. No widgets."""
