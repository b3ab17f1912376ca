"""A paged-KV, continuously batching decoder: one replica, used by one thread."""
