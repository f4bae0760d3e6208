"""JSON schemas, made exact: from the keywords of drafts 4 to 2020-12 to a grammar that means the same."""
