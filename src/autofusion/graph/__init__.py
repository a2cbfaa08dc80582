"""The Graph: operators and their data dependences in SSA form."""
