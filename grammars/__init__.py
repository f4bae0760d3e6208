"""What the next token may be: constraints, compiled grammars, per-sequence matchers, masks."""
