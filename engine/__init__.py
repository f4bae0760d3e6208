"""The engine: requests in, text out; knows nothing of HTTP."""
