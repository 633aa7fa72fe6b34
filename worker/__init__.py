"""The worker: builds, checks and times candidates on a device that it lends to the farm."""
