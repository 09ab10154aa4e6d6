"""Results of `llmtop bench` as plain typed data; the field names are a contract (docs/contracts.md)."""
