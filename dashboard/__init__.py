"""Web pages over the tuning database: read only, without anything from other hosts."""
