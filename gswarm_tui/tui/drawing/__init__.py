"""Drawing without widgets: values to cells, colours and lines of text."""
