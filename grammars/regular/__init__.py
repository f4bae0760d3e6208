"""Regular languages over Unicode text: expressions, with intersection and complement, and their automata."""
