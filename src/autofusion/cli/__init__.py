"""The command line: `main` takes the arguments apart, a file a command does the work."""
