"""The command line `agentctl`: people's way to coordination, and the local plane for one machine."""
