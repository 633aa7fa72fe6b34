"""What pages show, read from the database: small values, one query function each."""
