"""Passes over the Graph, one file each; `pipeline` is their narrated list."""
