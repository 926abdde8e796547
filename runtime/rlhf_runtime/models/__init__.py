"""Models and tokenizers: folders, loading, heads, adapters, saving."""
