"""The HTTP application and the `radish` command."""
