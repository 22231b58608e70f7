"""From settings and a checkpoint to a warm runner: loading, capacity, limits, device facts."""
