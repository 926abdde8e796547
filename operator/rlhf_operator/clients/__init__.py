"""The API server, Ray heads and the runtime's reports: where the operator reads and writes."""
