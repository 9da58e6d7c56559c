"""The language server: what each line costs, in any editor that speaks LSP."""
