"""Many processes, real signals, a ledger, and books that must balance."""
