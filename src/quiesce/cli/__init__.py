"""The command line: one file a verb. Each parses, composes and prints; the work is done elsewhere."""
