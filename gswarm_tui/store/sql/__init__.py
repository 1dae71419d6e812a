"""The SQL of a recording file: schema, views and recipes."""
