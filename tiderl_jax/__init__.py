"""tiderl_jax: a JAX laboratory for agentic reinforcement learning of language models."""
